"""The work of `adar-deploy train --from`: train a pretrained model further, and write a bundle."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from adar_deploy.console import Bar, print_facts, print_next
from adar_deploy.environment import require
from adar_deploy.paths import graph_files, named_bundle
from adar_deploy.training_options import TrainingOptions

USED = ("data", "out", "epochs", "lr", "seed", "overwrite")  # options of `train` that have a meaning here


class Tuned(NamedTuple):
    """A bundle that was trained further."""

    out: Path
    graphs: list[str]
    manifest: dict[str, Any]


def fine_tune(source: Path, options: TrainingOptions) -> Tuned:
    """Train the model of a bundle on graph files, and write the new bundle to --out.

    Args:
        source: A pretrained model: a folder, or the name `pretrained`.
        options: The options of `train`. Only those in USED may differ from their defaults.

    Returns:
        The new bundle, with its manifest as JSON.
    """
    require("export")
    from adar_export.pretrained import FINE_TUNING_LR, FINE_TUNING_UPDATES
    from adar_export.pretrained import fine_tune as tune
    from adar_runtime.errors import UsageError
    from adar_train.config import check_lr

    others = [name for name in options.changed() if name not in USED]
    if others:
        option = f"--{others[0].replace('_', '-')}"
        raise UsageError(f"--from has no {option}: remove it, or train without --from")
    out, data = options.out, options.data
    if not data or out is None:
        raise UsageError("--from needs graph files to train on, and --out for the folder of the new bundle")
    lr = FINE_TUNING_LR if options.lr is None else options.lr
    check_lr(lr)
    graphs = graph_files([Path(name) for name in data])
    check = partial(check_free, out, overwrite=options.overwrite)
    check()
    updates = options.epochs or FINE_TUNING_UPDATES
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
            lr=lr,
            seed=options.seed,
            on_update=show,
            check=check,
        )
    return Tuned(out, data, manifest.to_dict())


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that contains anything, unless it is a bundle to replace."""
    from adar_runtime.bundle.reading import MARKER
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_replaceable

    check_replaceable(out, MARKER)
    if not overwrite and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} contains a bundle: choose another --out, or replace it with --overwrite")


def show_tuned(done: Tuned) -> None:
    """Print what was written."""
    updates = done.manifest["training"]["updates"]
    print_facts("fine-tuned", {"graphs": ", ".join(done.graphs), "updates": updates, "bundle": done.out})
    print_next("run", done.graphs[0], "--bundle", done.out)
