"""Write `known_models.json`: every topology that this package exports. `make fingerprints` runs it.

A topology depends on the variant of the model, the alignment scalar, the level, the precision, on whether
targets are learned, on whether the input is normalised, and on whether edges have weights. It depends neither
on the dimensions nor on the opset. Plain exports are not listed: PyTorch writes them, and folds or shares
weights depending on their sizes and values.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import onnx

from adar_export.batched_equivariant_cell import build_batched_equivariant_cell
from adar_export.equivariant_cell import EQUIVARIANT_PRECISIONS, build_equivariant_models
from adar_export.equivariant_phases import build_equivariant_phases
from adar_export.onnx_models import build_batched_cell, build_onnx_models, build_phase_models
from adar_export.opsets import OLDEST
from adar_export.precision import FORMER, PRECISIONS
from adar_runtime.bundle.known_models import FILE, OPERATORS
from adar_runtime.bundle.manifest import BATCHED_CELL, ONNX_MODELS, PHASES
from adar_runtime.bundle.topology import Topology, Weight, read_topology
from adar_runtime.errors import ExportError
from adar_runtime.graph import LEVELS, NODE
from adar_train.alignments import ALIGNMENTS
from adar_train.cell import ModelConfig
from adar_train.equivariant import EquivariantAdaR
from adar_train.model import AdaR
from adar_train.variants import VARIANTS

SIZES = {"c": 7, "p": 8, "f": 16, "d": 24}  # any numbers that differ from each other and from constants
Entries = dict[str, list[dict[str, str]]]


def entries() -> Entries:
    """The content of `known_models.json`."""
    found: dict[str, dict[tuple[str, str], dict[str, str]]] = {
        name: {} for name in (*ONNX_MODELS, BATCHED_CELL, *PHASES)
    }
    for model, title, topology in fused_topologies():
        _add(found[model], title, topology)
    return {model: list(known.values()) for model, known in found.items()}


def _add(known: dict[tuple[str, str], dict[str, str]], title: str, topology: Topology) -> None:
    foreign = {pair for pair in topology.operators if pair[1] not in OPERATORS.get(pair[0], ())}
    if foreign:
        raise ExportError(
            f"{title} has operators that no bundle may have: {sorted(foreign)}; avoid them, or add them to "
            "adar_runtime.bundle.known_models.OPERATORS if they are safe with any input"
        )
    weights = " ".join(map(symbolic, topology.weights))
    entry = {"title": title, "fingerprint": topology.fingerprint, "weights": weights}
    known.setdefault((topology.fingerprint, weights), entry)  # the first of several that are the same


def fused_topologies(opset: int = OLDEST) -> Iterator[tuple[str, str, Topology]]:
    """Every model of the fused export, also of older versions: its name, a title, and its topology."""
    precisions = PRECISIONS | FORMER
    for config, is_silent in configurations():
        model, cells = build(config, silent=is_silent), config.level == NODE and not config.regression
        title = title_of(config, silent=is_silent)
        for precision in precisions if cells else ("fp32",):
            protos = build_onnx_models(model, opset, precisions[precision])
            protos[BATCHED_CELL] = build_batched_cell(model, opset, precisions[precision])
            if not config.edge_weights:  # the phases take no weights
                protos |= build_phase_models(model, opset, precisions[precision])
            for name, proto in protos.items():
                suffix = "" if name in ("encoder", "head") else f", {precision}"
                yield name, title + suffix, topology_of(proto)
    for precision in EQUIVARIANT_PRECISIONS:
        equivariant = EquivariantAdaR(SIZES["d"])
        protos = build_equivariant_models(equivariant, opset, precision)
        protos[BATCHED_CELL] = build_batched_equivariant_cell(equivariant, opset, precision)
        protos |= build_equivariant_phases(equivariant, opset, precision)
        for name, proto in protos.items():
            yield name, f"equivariant, pretrained, {precision}", topology_of(proto)


def configurations() -> Iterator[tuple[ModelConfig, bool]]:
    """The settings that a topology depends on, and whether a zero-shot cell has only layers that are zero."""
    for variant, targets, alignment in product(VARIANTS, (SIZES["c"], None), ALIGNMENTS):
        if targets is not None and not VARIANTS[variant].learned_targets:
            continue
        for level, regression in product(LEVELS, (False, True)):
            config = ModelConfig(
                SIZES["f"],
                targets,
                hidden=SIZES["d"],
                proxies=SIZES["p"],
                level=level,
                regression=regression,
                alignment=alignment,
                variant=variant,
            )
            for weighted in (False, True) if level == NODE and not regression else (False,):  # cells only
                settings = replace(config, edge_weights=weighted)
                yield settings, False
                if not VARIANTS[variant].learned_targets:
                    yield settings, True
            if level == NODE and not regression and VARIANTS[variant].learned_targets:  # encoders only
                yield replace(config, input_norm=True), False


def build(config: ModelConfig, *, silent: bool = False) -> AdaR:
    """A model with these settings. With `silent`, as training leaves it: its zero layers are frozen."""
    return AdaR(config).eval().requires_grad_(not silent)


def title_of(config: ModelConfig, *, silent: bool = False) -> str:
    """The settings in words."""
    targets = "described targets" if config.targets is None else "learned targets"
    parts = [config.variant, targets, config.alignment, f"level {config.level}"]
    parts += ["edge weights"] * config.edge_weights + ["normalised input"] * config.input_norm
    return ", ".join(parts + ["regression"] * config.regression + ["layers at zero left out"] * silent)


def topology_of(proto: onnx.ModelProto) -> Topology:
    """The topology of a model that was just built."""
    return read_topology(proto.SerializeToString())


def symbolic(weight: Weight) -> str:
    """The sizes of a weight, with letters for the dimensions, and the values of integers."""
    letters = {size: letter for letter, size in SIZES.items()}
    sides = ",".join(letters.get(side, str(side)) for side in weight.sides)
    return sides if weight.values is None else f"{sides}={','.join(map(str, weight.values))}"


def main() -> None:
    """Write the file, and say how many models it lists."""
    found = entries()
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{FILE.name}: {', '.join(f'{len(known)} {name}s' for name, known in found.items())}\n")


if __name__ == "__main__":
    main()
