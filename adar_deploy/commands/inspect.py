"""The command `adar-deploy inspect`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.console import megabytes, print_facts, print_rows

if TYPE_CHECKING:
    from adar_runtime.manifest import Manifest
    from adar_runtime.onnx_facts import GraphFacts


def inspect(
    bundle: Annotated[Path, typer.Argument(help="Folder of an exported bundle.")] = Path("bundle"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what a bundle is, takes and gives, and how well it was found to agree with PyTorch.

    Its files are checked against their hashes; nothing of it is run, and no PyTorch is needed.

    Example: adar-deploy inspect bundle
    """
    from adar_runtime.bundle import read_bundle
    from adar_runtime.onnx_facts import facts_of

    manifest, contents = read_bundle(bundle)
    facts = {name: facts_of(content) for name, content in contents.items()}
    engines = sorted(path.name for path in (bundle / "engines").glob("*.json"))
    if as_json:
        graphs = {name: {"parameters": f.parameters, "operators": f.operators} for name, f in facts.items()}
        typer.echo(json.dumps({"manifest": manifest.to_dict(), "graphs": graphs, "engines": engines}))
        return
    print_facts("bundle", _about(bundle, manifest, facts, engines))
    print_rows(
        ["graph", "takes", "gives", "operators", "parameters"],
        [
            (
                file.file,
                ", ".join(map(_port, file.inputs)),
                ", ".join(map(_port, file.outputs)),
                _counted(facts[name].operators),
                f"{facts[name].parameters:,}",
            )
            for name, file in manifest.graphs.items()
        ],
    )
    show_parity(manifest)


def _about(
    path: Path, manifest: "Manifest", facts: "dict[str, GraphFacts]", engines: list[str]
) -> dict[str, Any]:
    training = manifest.training
    scores = [f"{part} {100 * training[part]:.2f} %" for part in ("val", "test") if part in training]
    return {
        "folder": path,
        "predicts": f"{'numbers' if manifest.regression else 'classes'} of each {manifest.level}",
        "features, hidden, proxies": f"{manifest.features}, {manifest.hidden}, {manifest.proxies}",
        "targets": manifest.targets or "as the graph describes them",
        "opset, precision": f"{manifest.opset}, {manifest.precision}",
        "size": f"{megabytes(manifest)}, {sum(f.parameters for f in facts.values()):,} parameters",
        "exit": " ".join(f"{name} {value}" for name, value in manifest.exit.items()),
        "watches": manifest.alignment,
        "trained on": ", ".join(map(str, training.get("data", []))) or "unknown",
        **({training.get("metric", "metric"): ", ".join(scores)} if scores else {}),
        "engines": ", ".join(engines) or "none",
        "made with": ", ".join(f"{name} {number}" for name, number in manifest.versions.items()),
    }


def _port(port: Any) -> str:
    return f"{port.name} {port.type}[{', '.join(map(str, port.shape))}]"


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
        [
            "compared with PyTorch on",
            "steps",
            "absolute",
            "relative",
            "other class",
            "stops at",
            "PyTorch",
        ],
        [
            (
                check["graph"],
                check["steps"],
                f"{check['absolute']:.1e}",
                f"{check['relative']:.1e}",
                check["predictions"],
                check["stop"],
                check["reference_stop"],
            )
            for check in checks
        ],
    )
