"""Straighten the trajectories of a trained model, so that few cell calls give the result of many.

The loss compares ab2 with `FEW` calls and with twice as many on the whole graph, and keeps the class
probabilities of the trained model. It has no labels and no dropout, so it is the same function in every
update, and L-BFGS minimises it. Two things matter:

* The gradient passes through both runs of ab2. Through one of them alone, it moves both results together and
  leaves their difference.
* A small change of the weights changes the probabilities much, and the difference of the two results little.
  L-BFGS uses past gradients to find directions in which the probabilities stay. Adam does not, and costs more
  accuracy (`benchmarks/recipe.md`).
"""

import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from adar_runtime.bundle import run_files
from adar_runtime.bundle.manifest import LARGEST_DISTANCE, LEAST_SAME
from adar_runtime.errors import RunFolderError, UsageError, reason, short
from adar_runtime.evaluation.metrics import split_metrics
from adar_runtime.evaluation.training_data import KEY
from adar_runtime.graph import GRAPH, Graph
from adar_runtime.loop.registry import is_count, is_number
from adar_runtime.loop.schedule import step_code
from adar_runtime.loop.solvers import REFERENCE_STEPS, AdamsBashforth2, first_confirmed
from adar_train.cell import State
from adar_train.checkpoints import is_history
from adar_train.config import TrainConfig
from adar_train.exit_calibration import calibrated_metrics
from adar_train.model import AdaR
from adar_train.runs import Run
from adar_train.tensors import GraphTensors
from adar_train.trainer import Fitted

FEW = 10  # calls that should give the result of many
MANY = 64  # calls whose result stands for that of 300 Euler steps
AT_ONCE = 10  # iterations of L-BFGS between two checks
MOST_LOST = 0.001  # of the validation metric

KEEP = 100.0  # weight of the divergence from the probabilities of the trained model
AGREE = 500.0  # weight of the divergence between few and many calls
CLOSE = 500.0  # weight of the squared distance between their nodes, relative to the movement
DECIDE = 50.0  # weight of the squared difference of their margins, near a decision boundary


class Check(NamedTuple):
    """A model during the straightening, measured on the graph of the run."""

    updates: int
    calls: int  # the fewest calls of ab2 that give the predictions of `MANY` calls; `MANY` means "or more"
    val: float  # validation metric of `MANY` calls, at t = 1; NaN where it is undefined

    @property
    def shown_calls(self) -> str:
        """The number of calls as text. More than `MANY` calls are not distinguished from `MANY`."""
        return f"{MANY} or more" if self.calls == MANY else str(self.calls)


@dataclass(frozen=True, eq=False)
class Straightened:
    """The result as a run to save, and how the models before and after compare.

    `kept` says why the weights are those of the run; None if the weights are new.
    """

    fitted: Fitted
    before: Check
    after: Check
    kept: str | None


def straighten(run: Run, updates: int, on_check: Callable[[Check], None] = lambda _: None) -> Straightened:
    """Fine-tune the model of a run so that `FEW` calls of ab2 give its predictions.

    Of the weights whose validation metric is at most `MOST_LOST` below that of the run, those with the fewest
    calls are chosen. They are kept if the same holds at the exit, after a new calibration. `updates` is the
    number of evaluations of the loss and its gradient; the last line search may add a few.

    Raises:
        UsageError: If the run is not of one graph with learned classes and validation labels.
    """
    graph, training, history = checked_graph(run), training_of(run), _history(run)
    model: AdaR = deepcopy(run.model).requires_grad_()  # type: ignore[assignment]
    tensors = model.weighted(GraphTensors.of(graph))
    started = time.perf_counter()
    before = chosen = _check(model, graph, tensors, training.split, 0)
    if math.isnan(before.val):  # the graph of a stranger's run has no such labels
        raise _no_validation(run)
    on_check(before)
    weights = deepcopy(model.state_dict())
    for done in _minimise(model, tensors, updates) if before.calls > FEW else ():
        found = _check(model, graph, tensors, training.split, done)
        on_check(found)
        if found.val >= before.val - MOST_LOST and found.calls < before.calls and found.calls <= chosen.calls:
            chosen, weights = found, deepcopy(model.state_dict())
    model.load_state_dict(weights)
    model.requires_grad_(False)
    seconds = round(time.perf_counter() - started, 2)
    kept = None if chosen is not before else _nothing_better(before)
    metrics = run.metrics
    if kept is None:
        at_exit = calibrated_metrics(model, [graph], [tensors], training, run.metrics.get("epochs", 0))
        facts = {"calls_before": before.calls, "calls": chosen.calls, "updates": chosen.updates}
        metrics = run.metrics | at_exit | {"straightened": facts | {"seconds": seconds}}
        lost = run.metrics["val"] - at_exit["val"]
        if lost > MOST_LOST:
            kept = f"validation at the exit would fall by {100 * lost:.2f} points"
            model, metrics, chosen = run.model, run.metrics, before  # type: ignore[assignment]
    fitted = Fitted(model, metrics, history, run.config.get(KEY, {}), run.config.get("data_sha256", ""))
    return Straightened(fitted, before, chosen, kept)


def checked_graph(run: Run) -> Graph:
    """The graph of a run that can be straightened."""
    model = run.model
    if not isinstance(model, AdaR) or model.config.targets is None or model.config.regression:
        raise UsageError(f"{run.path} is not a model with learned classes: only those can be straightened")
    if model.config.unit_step:
        raise UsageError(f"{run.path} was trained without total-time: its cell is not an ODE")
    record = run.config.get(KEY)
    graphs = record.get("graphs", []) if isinstance(record, dict) else []  # a file may have several
    if max(len(run.config["data"]), len(graphs)) > 1 or model.config.level == GRAPH:
        raise UsageError(
            f"{run.path} was trained on several graphs: only runs of one graph can be straightened"
        )
    if not is_number(run.metrics.get("val")):
        raise _no_validation(run)
    return run.graph()


def _no_validation(run: Run) -> UsageError:
    return UsageError(f"{run.path} has no validation metric, which the result is checked with")


def training_of(run: Run) -> TrainConfig:
    """The settings of the training of a run."""
    try:
        found = TrainConfig(**run.config["training"])
    except TypeError as error:
        raise RunFolderError(f"{run.path} was made by another version: {reason(error)}") from error
    if not is_count(found.split, 0):
        raise RunFolderError(f"{run.path} has a split that is not a number from 0 on: {short(found.split)}")
    return found


def _history(run: Run) -> list[dict[str, float]]:
    """The learning curve of a run, which the new run keeps. It is read before the long work."""
    try:
        found: list[dict[str, float]] = run_files.read_json(run.path / run_files.HISTORY, run.config)
        if not is_history(found):
            raise ValueError("it is not a list of epochs")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{run.path / run_files.HISTORY} cannot be read: {reason(error)}") from error
    return found


def solve(model: AdaR, graph: GraphTensors, calls: int) -> tuple[State, State]:
    """The state at t = 0, and the state at t = 1 that ab2 computes with this number of calls."""
    model.eval()
    first = state = model.first_state(graph)
    previous: State | None = None
    for move in AdamsBashforth2(calls).moves(0.0, 1.0, 1 / REFERENCE_STEPS):
        code = torch.from_numpy(step_code(move.time, model.config.hidden)).to(state.nodes)
        led = graph.step(model.cell, state, code, move.lead)
        velocity = State(*((after - now) / move.lead for after, now in zip(led, state, strict=True)))
        state = _moved(state, velocity, move.weight)
        if previous is not None:
            state = _moved(state, previous, move.previous_weight)
        previous = velocity
    return first, state


def _moved(state: State, velocity: State, weight: float) -> State:
    return State(*(torch.add(now, v, alpha=weight) for now, v in zip(state, velocity, strict=True)))


def _minimise(model: AdaR, graph: GraphTensors, updates: int) -> Iterator[int]:
    """Minimise the loss; yield the number of updates before each check. Ends early if the loss diverges."""
    with torch.no_grad():
        trained = model.scores(solve(model, graph, MANY)[1], graph).log_softmax(dim=1)
    optimizer = torch.optim.LBFGS(
        [weight for weight in model.parameters() if weight.requires_grad],
        max_iter=AT_ONCE,
        tolerance_grad=0,
        tolerance_change=0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )
    done = 0

    def closure() -> Tensor:
        nonlocal done
        done += 1
        optimizer.zero_grad()
        loss = straightening_loss(model, graph, trained)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    while done < updates:
        optimizer.param_groups[0]["max_eval"] = min(AT_ONCE * 5 // 4, updates - done)
        loss = optimizer.step(closure)  # type: ignore[no-untyped-call]
        yield done
        if not math.isfinite(loss.detach()):
            return


def straightening_loss(model: AdaR, graph: GraphTensors, trained: Tensor) -> Tensor:
    """The loss; `trained` [k, c] are the logarithms of the probabilities of the trained model."""
    start, few = solve(model, graph, FEW)
    _, many = solve(model, graph, 2 * FEW)
    scores_few, scores_many = model.scores(few, graph), model.scores(many, graph)
    log_few, log_many = scores_few.log_softmax(dim=1), scores_many.log_softmax(dim=1)
    between = (_divergence(log_many, log_few) + _divergence(log_few, log_many)) / 2
    movement = (many.nodes - start.nodes).square().sum().detach()
    distance = (few.nodes - many.nodes).square().sum() / movement
    top = scores_many.detach().topk(2, dim=1).indices
    margin_few, margin_many = _margin(scores_few, top), _margin(scores_many, top)
    near = torch.exp(-margin_many.detach().square())
    decision = (near * (margin_few - margin_many).square()).mean()
    kept = _divergence(trained, log_many)
    return KEEP * kept + AGREE * between + CLOSE * distance + DECIDE * decision


def _divergence(expected: Tensor, found: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log probabilities [k, c], the mean over outputs."""
    return functional.kl_div(found, expected, log_target=True, reduction="batchmean")


def _margin(scores: Tensor, top: Tensor) -> Tensor:
    """The difference between the scores of two classes of each output, [k]."""
    first, second = scores.gather(1, top).unbind(dim=1)
    return first - second


@torch.no_grad()
def _check(model: AdaR, graph: Graph, tensors: GraphTensors, split: int, updates: int) -> Check:
    start, end = solve(model, tensors, MANY)
    scores = model.scores(end, tensors)
    movement = (end.nodes - start.nodes).norm()

    def enough(calls: int) -> int | None:
        state = solve(model, tensors, calls)[1]
        same = (model.scores(state, tensors).argmax(dim=1) == scores.argmax(dim=1)).double().mean()
        is_close = (state.nodes - end.nodes).norm() <= LARGEST_DISTANCE * movement
        return calls if is_close and same >= LEAST_SAME else None

    counts = (attempt.solver.calls for attempt in AdamsBashforth2.attempts(MANY))  # type: ignore[attr-defined]
    passed = first_confirmed(map(enough, counts))
    val = split_metrics(graph, scores.cpu().numpy(), split, ["val"]).get("val", math.nan)
    return Check(updates, passed or MANY, val)


def _nothing_better(before: Check) -> str:
    if before.calls <= FEW:
        return f"{before.calls} calls are enough already"
    return f"no weights with fewer calls lost at most {100 * MOST_LOST:g} points of validation"
