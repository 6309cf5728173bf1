"""The command `adar-deploy inspect`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adar_deploy.bundle_output import capturable, readable, show_parity
from adar_deploy.console import print_facts
from adar_deploy.formatting import exit_rule, megabytes, metric_title, percent, predicted
from adar_deploy.options import BundleArgument, Json

if TYPE_CHECKING:
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar
    from adar_runtime.bundle.manifest import Manifest, OnnxFile, Port
    from adar_runtime.bundle.onnx_facts import OnnxFacts

CLASSES = 20  # class names that are shown; --json has all of them


def inspect(
    bundle: BundleArgument = Path("bundle"),
    as_json: Json = False,
) -> None:
    """Show a bundle: its model, inputs and outputs, and the comparison with PyTorch.

    The hashes of its files are checked. Nothing is run, and PyTorch is not needed.

    Example: adar-deploy inspect bundle
    """
    from adar_runtime.backends.tensorrt.engines.sidecar import sidecars, summary
    from adar_runtime.bundle.onnx_facts import facts_of
    from adar_runtime.bundle.reading import read_bundle

    manifest, contents = read_bundle(bundle, allow_unknown_model=True, whole=True)
    with readable(bundle):
        facts = {name: facts_of(content) for name, content in contents.items()}
        engines = list(sidecars(bundle))
        if as_json:
            models = {
                name: {"parameters": f.parameters, "operators": f.operators} for name, f in facts.items()
            }
            built = [summary(one) for one in engines]
            typer.echo(json.dumps({"manifest": manifest.to_dict(), "graphs": models, "engines": built}))
            return
        print_facts("bundle", _overview(bundle, manifest, facts, engines))
        for name, file in manifest.onnx_models.items():
            _show_model(file, facts[name])
        show_parity(manifest)


def _show_model(file: "OnnxFile", facts: "OnnxFacts") -> None:
    """The size, operators, inputs and outputs of an ONNX file."""
    print_facts(file.file, {"parameters": f"{facts.parameters:,}", "operators": _counted(facts.operators)})
    print_facts("inputs", _ports(file.inputs), indent=2)
    print_facts("outputs", _ports(file.outputs), indent=2)


def _ports(ports: "Sequence[Port]") -> dict[str, str]:
    """Type and shape by name; numbered ports share one entry."""
    found: dict[str, list[Port]] = {}
    for port in ports:
        stem, _, number = port.name.rpartition("_")
        found.setdefault(stem if number.isdigit() else port.name, []).append(port)
    return {_names(alike): _type(alike[0], numbered=len(alike) > 1) for alike in found.values()}


def _names(alike: "Sequence[Port]") -> str:
    names = [port.name for port in alike]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _type(port: "Port", *, numbered: bool) -> str:
    sides = [str(side).rpartition("_")[0] if numbered else str(side) for side in port.shape]
    return f"{port.type} {' × '.join(sides)}".strip()


def _overview(
    path: Path, manifest: "Manifest", facts: "dict[str, OnnxFacts]", engines: "Sequence[Sidecar]"
) -> dict[str, Any]:
    from adar_runtime.graph.labels import listed

    training, in_context = manifest.training, manifest.in_context
    features = f"any number of columns; the start makes {manifest.features} of them"
    scores = [f"{part} {percent(training[part])}" for part in ("val", "test") if part in training]
    return {
        "folder": path,
        **_metadata(manifest),
        "predicts": predicted(manifest.targets, manifest.level, regression=manifest.regression),
        "features": features if in_context else f"{manifest.features:,} columns",
        "hidden, proxies": f"{manifest.hidden}, {manifest.proxies}",
        "targets": manifest.targets or f"as many as the graph {'has classes' if in_context else 'describes'}",
        **({"classes": listed(manifest.class_names, CLASSES)} if manifest.class_names else {}),
        "opset, precision": f"{manifest.opset}, {manifest.precision}",
        "size": f"{megabytes(manifest)}, {sum(f.parameters for f in facts.values()):,} parameters",
        "stop rule": exit_rule(manifest.exit),
        "alignment": manifest.alignment,
        **({"smoothing": f"rounds: {manifest.smoothing}"} if manifest.smoothing else {}),
        "trained on": ", ".join(map(str, training.get("data", []))) or "unknown",
        **({metric_title(training.get("metric", "metric")): ", ".join(scores)} if scores else {}),
        "checksums": "all files" if manifest.sealed else "ONNX files only, not the manifest",
        "engines": _engine_targets(manifest, engines) or "none",
        **_captured(engines),
        "made with": ", ".join(f"{name} {number}" for name, number in manifest.versions.items()),
    }


def _metadata(manifest: "Manifest") -> dict[str, Any]:
    """What the author says about the model; nothing in a bundle of an older version."""
    facts = {
        "name, version": ", ".join(filter(None, (manifest.name, manifest.version))),
        "created": manifest.created_at,
        "description": manifest.description,
    }
    return {name: value for name, value in facts.items() if value}


def _engine_targets(manifest: "Manifest", engines: "Sequence[Sidecar]") -> str:
    """The GPUs that there are engines for, and whether the engines were built from these ONNX files."""
    hashes = {name: file.sha256 for name, file in manifest.onnx_models.items()}
    found: dict[str, bool] = {}
    for one in engines:
        name = f"{one.builder} {one.version}, {one.gpus}"
        found[name] = found.get(name, True) and hashes.get(one.onnx_model, one.onnx_sha256) == one.onnx_sha256
    return "; ".join(name if fits else f"{name} (from other ONNX files)" for name, fits in found.items())


def _captured(engines: "Sequence[Sidecar]") -> dict[str, str]:
    """Whether the steps of each cell can be captured as a CUDA graph."""
    found = dict.fromkeys(capturable(one) for one in engines if one.onnx_model == "cell")
    return {"engines can be captured": "; ".join(found)} if found else {}


def _counted(operators: list[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(operators).most_common())
