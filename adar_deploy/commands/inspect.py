"""The command `adar-deploy inspect`."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adar_deploy.console import megabytes, percent, predicted, print_facts, print_rows
from adar_deploy.options import BundleArgument, Json

if TYPE_CHECKING:
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar
    from adar_runtime.bundle.manifest import Manifest, OnnxFile, Port
    from adar_runtime.bundle.onnx_facts import OnnxFacts

CLASSES = 20  # whose names are shown; all are in --json


def inspect(
    bundle: BundleArgument = Path("bundle"),
    as_json: Json = False,
) -> None:
    """Show what a bundle is, takes and gives, and how well it was found to agree with PyTorch.

    Its files are checked against their hashes; nothing of it is run, and no PyTorch is needed.

    Example: adar-deploy inspect bundle
    """
    from adar_runtime.backends.tensorrt.engines.sidecar import sidecars, summary
    from adar_runtime.bundle.bundle import read_bundle
    from adar_runtime.bundle.onnx_facts import facts_of

    manifest, contents = read_bundle(bundle)
    with readable(bundle):
        facts = {name: facts_of(content) for name, content in contents.items()}
        engines = list(sidecars(bundle))
        if as_json:
            graphs = {
                name: {"parameters": f.parameters, "operators": f.operators} for name, f in facts.items()
            }
            built = [summary(one) for one in engines]
            typer.echo(json.dumps({"manifest": manifest.to_dict(), "graphs": graphs, "engines": built}))
            return
        print_facts("bundle", _about(bundle, manifest, facts, engines))
        for name, file in manifest.onnx_models.items():
            _show_graph(file, facts[name])
        show_parity(manifest)


@contextmanager
def readable(bundle: Path) -> Iterator[None]:
    """What a runtime has no use for is not checked when a bundle is read: it may be anything."""
    from adar_runtime.errors import BundleError, reason

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"{bundle} says of itself what cannot be shown ({reason(error)}): export the run again"
        ) from error


def _show_graph(file: "OnnxFile", facts: "OnnxFacts") -> None:
    """What a graph is made of, takes and gives: a line for each, since there are many."""
    print_facts(file.file, {"parameters": f"{facts.parameters:,}", "operators": _counted(facts.operators)})
    print_facts("takes", _ports(file.inputs), indent=2)
    print_facts("gives", _ports(file.outputs), indent=2)


def _ports(ports: "Sequence[Port]") -> dict[str, str]:
    """Type and shape by name; of ports that are numbered, all in one."""
    found: dict[str, list[Port]] = {}
    for port in ports:
        stem, _, number = port.name.rpartition("_")
        found.setdefault(stem if number.isdigit() else port.name, []).append(port)
    return {_names(alike): _kind(alike[0], numbered=len(alike) > 1) for alike in found.values()}


def _names(alike: "Sequence[Port]") -> str:
    names = [port.name for port in alike]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _kind(port: "Port", *, numbered: bool) -> str:
    sides = [str(side).rpartition("_")[0] if numbered else str(side) for side in port.shape]
    return f"{port.type} {' × '.join(sides)}".strip()


def _about(
    path: Path, manifest: "Manifest", facts: "dict[str, OnnxFacts]", engines: "Sequence[Sidecar]"
) -> dict[str, Any]:
    from adar_runtime.graph.labels import listed

    training = manifest.training
    scores = [f"{part} {100 * training[part]:.2f} %" for part in ("val", "test") if part in training]
    return {
        "folder": path,
        "predicts": predicted(manifest.targets, manifest.level, regression=manifest.regression),
        "features, hidden, proxies": f"{manifest.features}, {manifest.hidden}, {manifest.proxies}",
        "targets": manifest.targets or "as the graph describes them",
        **({"classes": listed(manifest.class_names, CLASSES)} if manifest.class_names else {}),
        "opset, precision": f"{manifest.opset}, {manifest.precision}",
        "size": f"{megabytes(manifest)}, {sum(f.parameters for f in facts.values()):,} parameters",
        "exit": " ".join(f"{name} {value}" for name, value in manifest.exit.items()),
        "watches": manifest.alignment,
        "trained on": ", ".join(map(str, training.get("data", []))) or "unknown",
        **({training.get("metric", "metric"): ", ".join(scores)} if scores else {}),
        "checksums": "of every file" if manifest.sealed else "of the graphs, none of the manifest",
        "engines": _targets(manifest, engines) or "none",
        "made with": ", ".join(f"{name} {number}" for name, number in manifest.versions.items()),
    }


def _targets(manifest: "Manifest", engines: "Sequence[Sidecar]") -> str:
    """What there are engines for, and whether they are of these ONNX files."""
    hashes = {name: file.sha256 for name, file in manifest.onnx_models.items()}
    found: dict[str, bool] = {}
    for one in engines:
        name = f"{one.builder} {one.version}, {one.gpus}"
        found[name] = found.get(name, True) and hashes.get(one.onnx_model, one.onnx_sha256) == one.onnx_sha256
    return "; ".join(name if fits else f"{name} (of other ONNX files)" for name, fits in found.items())


def _counted(operators: list[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(operators).most_common())


def show_parity(manifest: "Manifest") -> None:
    """The comparison with PyTorch, and how many calls each solver needs."""
    show_checks(manifest.parity.get("checks", []))
    found = manifest.convergence
    if found:
        print_facts(
            f"calls of the cell for the answer of {found['reference']} steps",
            {
                "measured on": found["graph"],
                "order of convergence": f"{found['order']} (1 is that of Euler's method on an ODE)",
                **found["calls"],
            },
        )


def show_checks(checks: Sequence[Mapping[str, Any]]) -> None:
    """A row for each comparison with PyTorch."""
    print_rows(
        ["compared with PyTorch on", "steps", "absolute", "relative", "other class", "stop", "metric"],
        [
            (
                check["graph"] if index == 0 or check["graph"] != checks[index - 1]["graph"] else "",
                check["steps"],
                f"{check['absolute']:.1e}",
                f"{check['relative']:.1e}",
                check["predictions"],
                _beside(str(check["stop"]), str(check["reference_stop"])),
                _beside(_metric(check["metric"]), _metric(check["reference_metric"])),
            )
            for index, check in enumerate(checks)
        ],
    )


def _beside(ours: str, reference: str) -> str:
    """What both say or, where they differ, both."""
    return ours if ours == reference else f"{ours}, not {reference}"


def _metric(value: float | None) -> str:
    return "" if value is None else percent(value)
