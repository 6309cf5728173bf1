"""Train and write a run: the work of `adar-deploy train` and of `adar_deploy.train`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adar_deploy.console import Bar, err, print_note
from adar_deploy.environment import require
from adar_deploy.formatting import percent
from adar_deploy.options import without_none
from adar_deploy.paths import RUNS, training_names
from adar_deploy.training_options import ZERO_SHOT_HIDDEN, Ablation, Preset, TrainingOptions

if TYPE_CHECKING:
    from adar_runtime import Graph
    from adar_train.cell import ModelConfig
    from adar_train.config import TrainConfig
    from adar_train.job import Job
    from adar_train.search import SearchPlan, Settings
    from adar_train.trainer import Epoch

SEARCHED = (  # options that the search of the default recipe chooses, unless they are given
    "dropout",
    "input_dropout",
    "smoothing",
    "weight_decay",
    "label_smoothing",
    "train_steps",
    "lr",
)
# Options that have no effect: parts of AdaR, and what the paper's grid (--search) sets or does not have.
NOT_FOR_BASELINES = ("train_steps", "input_dropout", "smoothing", "alignment", "without")
NOT_FOR_GRID = ("train_steps", "dropout", "resume", "checkpoint_every")
# A baseline has a fixed depth, and the paper's other two losses are defined on AdaR's steps only.
ONE_PASS = {"select_budgets": (1,), "exit_budgets": (1,), "step_weight": 0.0, "full_weight": 0.0}


class Training(NamedTuple):
    """A finished training."""

    out: Path
    graphs: "Sequence[Graph]"
    metrics: dict[str, Any]
    notes: list[str]  # what was changed or drawn, in the words of the command


def run_training(
    options: TrainingOptions, *, in_memory: "Mapping[str, Graph] | None" = None, quiet: bool = False
) -> Training:
    """Train and write the run.

    Names of `options.data` and `options.validate_on` that are in `in_memory` stand for these graphs.
    """
    require("train")
    from adar_runtime.errors import UsageError
    from adar_train import distributed
    from adar_train.config import SEARCH
    from adar_train.threads import avoid_busy_cores

    if options.resume and options.out is None:
        raise UsageError("--resume needs --out, the folder of the run to continue")
    shown = distributed.rank() == 0 and not quiet
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if shown:
            print_note(text, to=err)

    _note_unused(options, note)
    names, graphs = _read_graphs(options, in_memory or {}, note)
    recipe = Recipe.of(options, graphs)
    job = _job(options, recipe, names, graphs)
    avoid_busy_cores(note)
    plan = _search_plan(options, recipe, job, note)
    with (
        distributed.process_group(distributed.choose_device(options.device)),
        Bar("train", plan.epochs + job.training.epochs, shown=shown) as bar,
    ):
        progress = Progress(bar, plan.epochs, job.training.epochs)
        if options.search:
            metrics = job.search(SEARCH, options.device, progress.epoch, options.overwrite, note)
        else:
            metrics = job.run(
                options.device,
                progress.epoch,
                checkpoint_every=options.checkpoint_every,
                resume=options.resume,
                overwrite=options.overwrite,
                on_note=note,
                choices=plan.choices,
                challenger=plan.challenger,
                on_search=progress.search,
            )
    return Training(job.out, graphs, metrics, notes)


def _note_unused(options: TrainingOptions, note: Callable[[str], None]) -> None:
    """Say which of the given options have no effect."""
    unused = (
        (options.baseline, f"--baseline {options.baseline}", NOT_FOR_BASELINES),
        (options.search, "--search", NOT_FOR_GRID),
    )
    for is_chosen, chosen, names in unused:
        given = [f"--{name.replace('_', '-')}" for name in options.changed() if name in names]
        if is_chosen and given:
            note(f"no effect with {chosen}: {', '.join(given)}")


def _read_graphs(
    options: TrainingOptions, in_memory: "Mapping[str, Graph]", note: Callable[[str], None]
) -> "tuple[list[str], Sequence[Graph]]":
    """The names of the graphs, and the graphs, ready for training."""
    from adar_train.data import load_all
    from adar_train.prepare import prepare

    names, validating = training_names(_data(options), options.validate_on or [], in_memory)
    options.tables.check(names)
    read_file = options.tables.reader(load_all, note)

    def read(name: str) -> "list[Graph]":
        return [in_memory[name]] if name in in_memory else read_file(name)

    return names, prepare(names, options.task, options.seed, note, validating, read)


def _data(options: TrainingOptions) -> list[str]:
    return options.data or ["minesweeper"]


def _run_name(data: str) -> str:
    """The name of a run: that of its first graph. The folders `.`, `..` and `/` have no name of their own."""
    return Path(data).stem.strip(".") or Path(data).resolve().stem or "graphs"


class Recipe(NamedTuple):
    """The settings to start from, which follow from the options and from the graphs."""

    preset: Preset | None  # None is the default recipe
    zero_shot: bool  # our recipe for classes that are described
    small: bool  # for many small graphs

    @classmethod
    def of(cls, options: TrainingOptions, graphs: "Sequence[Graph]") -> "Recipe":
        """The recipe for these graphs."""
        from adar_train.graph_batch import are_small

        graph, learned = graphs[0], graphs[0].target_features is None
        preset = options.preset
        if preset is None and (options.baseline or not learned):
            preset = Preset.quick  # the default recipe was measured for AdaR with learned targets only
        zero_shot = preset == Preset.quick and options.baseline is None and not learned
        zero_shot = zero_shot and graph.level == "node" and not graph.regression
        own = options.baseline is None and preset in (None, Preset.quick)  # not the paper's settings
        return cls(preset, zero_shot, small=own and are_small(graphs))


def _job(options: TrainingOptions, recipe: Recipe, names: list[str], graphs: "Sequence[Graph]") -> "Job":
    """The training that the options ask for."""
    from adar_train.job import Job
    from adar_train.run_folders import free_name

    removed = set(options.without or ())
    _check_ablations(removed, recipe)
    return Job(
        names=names,
        graphs=graphs,
        model=_model_config(options, recipe, removed, graphs),
        training=_train_config(options, recipe, removed, graphs),
        baseline=options.baseline,
        out=options.out or free_name(RUNS, _run_name(_data(options)[0])),
    )


def _model_config(
    options: TrainingOptions, recipe: Recipe, removed: set[Ablation], graphs: "Sequence[Graph]"
) -> "ModelConfig":
    from adar_train.prepare import default_sizes, model_config

    sizes = default_sizes(graphs, small=recipe.small)
    dropout = 0.0 if recipe.zero_shot and options.dropout is None else options.dropout
    alignment = None if recipe.preset == Preset.quick else "mean-inner-product"
    return model_config(
        graphs,
        hidden=options.hidden or (ZERO_SHOT_HIDDEN if recipe.zero_shot else sizes["hidden"]),
        variant="zero-shot" if recipe.zero_shot else "standard",
        proxies=options.proxies or sizes["proxies"],
        step_info=Ablation.step_info not in removed,
        relation=Ablation.relation not in removed,
        unit_step=Ablation.total_time in removed,
        **without_none(
            dropout=dropout,
            input_dropout=options.input_dropout,
            smoothing=options.smoothing,
            alignment=options.alignment or alignment,
        ),
    )


def _train_config(
    options: TrainingOptions, recipe: Recipe, removed: set[Ablation], graphs: "Sequence[Graph]"
) -> "TrainConfig":
    from adar_train.config import preset
    from adar_train.search import is_wide

    return preset(
        recipe.preset,
        described=recipe.zero_shot,
        wide=is_wide(graphs[0]),
        small=recipe.small,
        seed=options.seed,
        split=options.split,
        gradient_checkpoints=options.gradient_checkpoints,
        mixed_precision=options.mixed_precision,
        class_weights=str(options.class_weights),
        calibration=str(options.calibration),
        **without_none(
            epochs=options.epochs,
            train_steps=options.train_steps,
            lr=options.lr,
            weight_decay=options.weight_decay,
            label_smoothing=options.label_smoothing,
        ),
        **(ONE_PASS if options.baseline else {}),
        **({"grid": "unit"} if Ablation.total_time in removed else {}),
        **({"step_weight": 0.0} if Ablation.step_loss in removed else {}),
        **({"full_weight": 0.0} if Ablation.full_loss in removed else {}),
    )


def _check_ablations(removed: set[Ablation], recipe: Recipe) -> None:
    """Refuse to remove a part that the model does not have."""
    from adar_runtime.errors import UsageError

    losses = removed & {Ablation.step_loss, Ablation.full_loss}
    parts = removed & {Ablation.step_info, Ablation.relation}
    if (losses and recipe.preset == Preset.quick) or (parts and recipe.zero_shot):
        word = min(losses or parts)
        raise UsageError(f"this recipe has no {word} to remove: add --preset transductive or zero-shot")


def _search_plan(
    options: TrainingOptions, recipe: Recipe, job: "Job", note: Callable[[str], None]
) -> "SearchPlan":
    """What the default recipe tries. Other recipes, and the paper's grid (--search), have no plan."""
    from adar_train.search import FEWEST_EPOCHS, NO_SEARCH, plan_search

    if recipe.preset or options.search:
        return NO_SEARCH
    given = without_none(**{name: getattr(options, name) for name in SEARCHED})
    plan = plan_search(job.graphs[0], given, job.training.epochs)
    if options.search is None and plan.epochs and job.training.epochs < FEWEST_EPOCHS:
        note(f"no search of the regularisation: it needs at least {FEWEST_EPOCHS} epochs (--epochs)")
        return plan.first_only()
    return plan.first_only() if options.search is False else plan


class Progress:
    """The bar of a training: first the epochs of the search, then those of the training."""

    def __init__(self, bar: Bar, searching: int, epochs: int) -> None:
        self._bar, self._searching, self._epochs = bar, searching, epochs
        self._searched = 0

    def epoch(self, epoch: "Epoch") -> None:
        """Show an epoch of the training."""
        val = "" if epoch.val is None else f"  best val {percent(epoch.val)}"
        then = "  calibrating the stop rule" if epoch.number == self._epochs else ""
        self._bar.update(self._searching + epoch.number, f"loss {epoch.loss:.4f}{val}{then}")

    def search(self, tried: "Settings", epoch: "Epoch") -> None:
        """Show an epoch of a candidate."""
        from adar_train.search import settings_line

        self._searched += 1
        self._bar.update(self._searched, f"search: epoch {epoch.number} of {settings_line(tried)}")
