"""Part "compute": accuracy, time and memory of depth, for GCNII, N² and AdaR, each row in a new process.

Times are CPU times of one thread, so that other work on the machine does not count.
"""

import multiprocessing as mp
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from adar_runtime.benchmarking.race import peak_bytes
from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_runtime.evaluation.metrics import metric_name, split_metrics
from adar_runtime.loop.schedule import times
from adar_train import AdaR, GraphTensors, TrainConfig, Trainer, load
from adar_train.baselines import BASELINES
from adar_train.config import preset
from adar_train.fit import build
from adar_train.model import Model
from adar_train.prepare import model_config
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work
from benchmarks.paper.training import BASELINE_TRAINING, HIDDEN, show_epochs

PART_NAME = "compute"
SETS = ("minesweeper",)
DEPTHS = (8, 20, 50, 100)
METHODS = ("gcnii", "n2")
ADAR_SETTING = "trained with 8 steps"
RATES = (1e-2, 3e-3)  # learning rates, the same for all models; the best on validation counts
FIRST_RATE = {"adar": 1e-2, "gcnii": 3e-3, "n2": 3e-3}  # of the rows whose setting names no rate
EPOCHS, QUICK_EPOCHS = 100, 30
REPEATS = 3  # of an inference; the median counts


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """AdaR once, GCNII and N² at every depth; each with its first learning rate, then with the other."""
    found = []
    for name in sets:
        for first in (True, False):
            found.append(_task(name, "adar", ADAR_SETTING, 150, first=first))
            for depth in DEPTHS:
                found += [_task(name, one, f"{depth} layers", 8 * depth, first=first) for one in METHODS]
    return found


def _task(name: str, method: str, depth: str, guess: float, *, first: bool) -> Task:
    rate = next(one for one in RATES if (one == FIRST_RATE[method]) == first)
    return Task(_key(name, method, depth, rate), guess, {"lr": rate})


def _key(name: str, method: str, depth: str, rate: float) -> Key:
    setting = depth if rate == FIRST_RATE[method] else f"{depth}, lr {rate:g}"
    return Key(PART_NAME, name, 0, method, setting)


def searched(table: Table, name: str, method: str, depth: str) -> list[Row]:
    """The finished rows of a model, one per learning rate, the best on validation first."""
    rows = [table.find(_key(name, method, depth, rate)) for rate in RATES]
    return sorted((row for row in rows if row is not None), key=lambda row: -row["val"])


def cost_row(rows: Sequence[Row]) -> Row:
    """The row that says what a model costs: the newest, as the learning rate does not matter."""
    return max(rows, key=lambda row: row["date"])


def measure(work: Work) -> Row:
    """Train, then time inferences; the memory of an inference is that of a process that only infers."""
    rate = work.options["lr"]
    graph = load(str(work.file()))
    epochs = QUICK_EPOCHS if work.quick else EPOCHS
    layers = None if work.key.method == "adar" else int(work.key.setting.split()[0])
    budgets = PAPER_BUDGETS if layers is None else (layers,)
    model = _model(work.key.method, layers, str(work.file()), work.key.seed)
    config = (
        preset("quick", epochs=epochs, lr=rate, seed=work.key.seed, mixed_precision=False)
        if layers is None
        else TrainConfig(**BASELINE_TRAINING | {"lr": rate}, epochs=epochs, seed=work.key.seed)
    )
    trainer = Trainer([graph], model, config)
    before, started = reset_peak(), time.process_time()
    trainer.advance(epochs, show_epochs(work, epochs))
    seconds, memory = time.process_time() - started, (peak_bytes() - before) / 2**20
    model.load_state_dict(trainer.best)
    inference = {}
    work.report(0.9, "memory of an inference")
    peaks = _in_new_process(work.key.method, layers, str(work.file()), budgets)
    repeats = 1 if work.quick else REPEATS
    for budget, peak in zip(budgets, peaks, strict=True):
        work.report(0.95, f"inference with {budget} steps")
        each, metrics = _infer(model, graph, trainer.tensors[0], budget, work.key.split, repeats)
        inference[str(budget)] = {"cpu_seconds": round(each, 4), "memory_mb": round(peak, 1)} | metrics
    return {
        "metric": metric_name(graph.targets),
        "epochs": epochs,
        "cpu_seconds": round(seconds, 2),
        "cpu_seconds_per_epoch": round(seconds / epochs, 4),
        "memory_mb": round(memory, 1),
        "inference": inference,
        "val": trainer.best_val,
        "settings": {"layers": layers, "hidden": HIDDEN, "lr": rate, "train_steps": config.train_steps},
    }


def _model(method: str, layers: int | None, file: str, seed: int) -> Model:
    graph = load(file)
    config = model_config([graph], hidden=HIDDEN)
    if layers is None:
        return build([graph], config, seed)
    torch.manual_seed(seed)
    return BASELINES[method](config, layers=layers)


@torch.no_grad()
def _infer(
    model: Model, graph: Any, tensors: GraphTensors, budget: int, split: int, repeats: int
) -> tuple[float, dict[str, float]]:
    """The median CPU time of an inference, and its metrics."""
    model.eval()
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        for state in model.trajectory(tensors, times(budget)):
            last = state
        scores = model.scores(last, tensors).numpy()
        seconds.append(time.process_time() - started)
    return median(seconds), split_metrics(graph, scores, split, ["val", "test"])


def _in_new_process(method: str, layers: int | None, file: str, budgets: Sequence[int]) -> list[float]:
    """MB that an inference with each budget adds to the peak of a process with the graph and the model."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(inference_memory, method, layers, file, budgets).result()


def inference_memory(method: str, layers: int | None, file: str, budgets: Sequence[int]) -> list[float]:
    """The increase of this process's peak memory by one inference with each budget, in MB."""
    torch.set_num_threads(1)
    graph = load(file)
    model = _model(method, layers, file, 0)
    if isinstance(model, AdaR):
        torch.nn.init.normal_(model.cell.velocity.out.weight, std=0.01)  # starts at zero
    tensors = GraphTensors.of(graph)
    found = []
    for budget in budgets:
        before = reset_peak()
        _infer(model, graph, tensors, budget, 0, repeats=1)
        found.append((peak_bytes() - before) / 2**20)
    return found


def reset_peak() -> int:
    """Forget the peak memory of this process so far, where the system allows it; return the new peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: see proc(5)
    return peak_bytes()


PART = Part(PART_NAME, SETS, tasks, measure)
