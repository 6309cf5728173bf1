"""The work of `adar-deploy train --from`: train a pretrained model further, and write a bundle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adar_deploy.console import Bar, print_facts, print_next
from adar_deploy.environment import require
from adar_deploy.paths import graph_files, named_bundle

USED = ("data", "out", "epochs", "lr", "seed", "overwrite")  # options of `train` that have a meaning here


def fine_tune(source: Path, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Train the model of a bundle on graph files, and write the new bundle to --out.

    Args:
        source: A pretrained model: a folder, or the name `pretrained`.
        options: All options of `train`.
        defaults: Their defaults. Only those in USED may differ.

    Returns:
        The manifest of the new bundle, as JSON.
    """
    require("export")
    from adar_export.pretrained import FINE_TUNING_LR, FINE_TUNING_UPDATES
    from adar_export.pretrained import fine_tune as tune
    from adar_runtime.errors import UsageError

    others = [name for name in options if name not in USED and options[name] != defaults.get(name)]
    if others:
        option = f"--{others[0].replace('_', '-')}"
        raise UsageError(f"--from has no {option}: remove it, or train without --from")
    out, data = options["out"], options["data"]
    if not data or out is None:
        raise UsageError("--from needs graph files to train on, and --out for the folder of the new bundle")
    graphs = graph_files([Path(name) for name in data])
    check_free(out, overwrite=options["overwrite"])
    updates = options["epochs"] or FINE_TUNING_UPDATES
    gains: list[float] = []
    with Bar("fine-tune", updates) as bar:

        def show(done: int, gain: float) -> None:
            gains.append(gain)
            bar.update(done, f"gain over the start {100 * sum(gains[-20:]) / len(gains[-20:]):+.1f} points")

        manifest = tune(
            named_bundle(source),
            graphs,
            out,
            updates=updates,
            lr=options["lr"] or FINE_TUNING_LR,
            seed=options["seed"],
            on_update=show,
        )
    found: dict[str, Any] = manifest.to_dict()
    return found


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that contains anything, unless it is a bundle to replace."""
    from adar_runtime.bundle.reading import MARKER
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_replaceable

    check_replaceable(out, MARKER)
    if not overwrite and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} contains a bundle: choose another --out, or replace it with --overwrite")


def show_tuned(out: Path, graphs: Sequence[str], manifest: Mapping[str, Any]) -> None:
    """Print what was written."""
    updates = manifest["training"]["updates"]
    print_facts("fine-tuned", {"graphs": ", ".join(graphs), "updates": updates, "bundle": out})
    print_next("run", graphs[0], "--bundle", out)
