"""A training as the command runs it: search, resume, gradient checkpoints, TensorBoard."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from adar_runtime import Graph
from adar_runtime.errors import DivergedError, GraphError, UsageError
from adar_train import Epoch, Fitted, TrainConfig, Trainer, fit, runs
from adar_train.job import Job, TensorBoardLog
from adar_train.prepare import model_config
from adar_train.runs import load_run, save_run

QUICK = TrainConfig(epochs=2, train_steps=2, select_budgets=(2,), exit_budgets=(2,))


def job(board: Graph, out: Path) -> Job:
    return Job(["board"], [board], model_config([board], hidden=8, proxies=2), QUICK, out)


def test_search_keeps_the_best_run_by_validation(board: Graph, tmp_path: Path) -> None:
    metrics = job(board, tmp_path / "run").search({"train_steps": (1, 3), "dropout": (0.0, 0.5)}, "cpu")
    assert [(one["train_steps"], one["dropout"]) for one in metrics["search"]] == [
        (1, 0),
        (1, 0.5),
        (3, 0),
        (3, 0.5),
    ]
    best = max(metrics["search"], key=lambda one: one["val"])
    assert metrics["val"] == best["val"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["training"]["train_steps"] == best["train_steps"]
    assert config["model"]["dropout"] == best["dropout"]


def test_search_drops_what_diverges(board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of other trainings were lost."""
    run, notes = Trainer.run, list[str]()

    def diverge(trainer: Trainer, *args: Any) -> Fitted:
        if trainer.config.train_steps > 1:
            raise DivergedError("the loss is no longer finite in epoch 2: try a smaller --lr")
        return run(trainer, *args)

    monkeypatch.setattr(Trainer, "run", diverge)
    one = job(board, tmp_path / "run")
    metrics = one.search({"train_steps": (3, 1)}, "cpu", on_note=notes.append)
    assert [each["train_steps"] for each in metrics["search"]] == [1]
    assert notes == ["the search dropped train steps 3: the loss is no longer finite in epoch 2"]
    with pytest.raises(DivergedError):
        one.search({"train_steps": (3, 4)}, "cpu", overwrite=True)


def test_jobs_that_cannot_start_are_refused(board: Graph, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of gcn"):
        replace(job(board, tmp_path / "run"), baseline="crystal-ball").run("cpu")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    with pytest.raises(UsageError, match="already"):
        job(board, tmp_path / "thesis").run("cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_finished_run_is_replaced_only_on_request(board: Graph, tmp_path: Path) -> None:
    one = job(board, tmp_path / "run")
    one.run("cpu")
    before = contents(tmp_path / "run")
    refused = r"contains a finished run: choose another --out, or replace it with --overwrite"
    with pytest.raises(UsageError, match=refused):
        one.run("cpu")
    with pytest.raises(UsageError, match=refused):
        one.search({"train_steps": (1,)}, "cpu")
    other = replace(one, training=replace(one.training, seed=1))
    with pytest.raises(UsageError, match=refused):
        other.run("cpu", resume=True)
    assert contents(tmp_path / "run") == before
    other.run("cpu", overwrite=True)
    assert contents(tmp_path / "run")["model.safetensors"] != before["model.safetensors"]


def test_an_unfinished_run_is_replaced_only_on_request(board: Graph, tmp_path: Path) -> None:
    def stop(_: Epoch) -> None:
        raise KeyboardInterrupt

    one = job(board, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        one.run("cpu", stop, checkpoint_every=1)
    assert (tmp_path / "run" / "checkpoint.safetensors").is_file()
    with pytest.raises(UsageError, match="contains an unfinished run: continue it with --resume"):
        one.run("cpu")
    one.run("cpu", overwrite=True)


def test_a_run_whose_writing_is_interrupted_is_absent(
    board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`straighten` left weights and a graph, and then refused the folder, also with --overwrite."""

    def interrupted(*_: object) -> None:
        assert any(tmp_path.rglob("model.safetensors"))
        raise KeyboardInterrupt

    fitted = fit([board], model_config([board], hidden=8, proxies=2), QUICK)
    for name in ("new", "empty"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(runs, "plot_learning", interrupted)
            save_run(tmp_path / name, fitted, board, ["board"], QUICK)
        assert not (tmp_path / name).exists() or not any((tmp_path / name).iterdir())
        (tmp_path / "empty").mkdir(exist_ok=True)
        save_run(tmp_path / name, fitted, board, ["board"], QUICK)
        assert load_run(tmp_path / name).metrics["val"] == fitted.metrics["val"]


@pytest.mark.parametrize("name", ["learning.png", "history.json"])
def test_a_folder_in_place_of_a_file_loses_no_run(name: str, board: Graph, tmp_path: Path) -> None:
    """The old run lost its config.json before the new one could not be written."""
    fitted = fit([board], model_config([board], hidden=8, proxies=2), QUICK)
    save_run(tmp_path, fitted, board, ["board"], QUICK)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"{name} is a folder"):
        save_run(tmp_path, fitted, board, ["board"], QUICK)
    with pytest.raises(UsageError, match=f"{name} is a folder"):
        job(board, tmp_path).run("cpu", overwrite=True)
    assert (tmp_path / "config.json").is_file()


def test_files_of_another_program_beside_tensorboard_are_not_replaced(board: Graph, tmp_path: Path) -> None:
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    (tmp_path / "run" / "metrics.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"metrics\.json is not of a run of adar-deploy"):
            job(board, tmp_path / "run").run("cpu", overwrite=overwrite)
    assert (tmp_path / "run" / "metrics.json").read_text() == "{}"


@pytest.mark.parametrize("start", [".", "below"])
def test_a_run_in_the_working_folder_or_above_it(
    board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The working folder stays, and a folder without a name is found among its neighbours."""
    (tmp_path / "run" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run" / start)
    for overwrite in (False, True):
        one = job(board, Path("." if start == "." else ".."))
        save_run(one.out, one._trainer("cpu").run(), board, ["board"], one.training)
        assert load_run(tmp_path / "run").graph().nodes == board.nodes, overwrite
        assert Path.cwd() == (tmp_path / "run" / start).resolve()


SAVE_AGAIN = """
from pathlib import Path
from adar_train import load_run, save_run
from adar_train.config import TrainConfig
from adar_train.trainer import Fitted

run = load_run(Path("run"))
save_run("run", Fitted(run.model, run.metrics, []), run.graph(), ["again"], TrainConfig())
"""


def test_a_disk_that_is_mounted_in_a_run_keeps_its_files(board: Graph, tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this system does not let a test mount a disk of its own (unshare, mount)")
    job(board, tmp_path / "run").run("cpu")
    (tmp_path / "run" / "a disk").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("mine")
    command = 'mount --bind other "run/a disk" && exec "$0" -c "$1"'
    subprocess.run([*alone, "sh", "-c", command, sys.executable, SAVE_AGAIN], cwd=tmp_path, check=True)
    assert load_run(tmp_path / "run").config["data"] == ["again"]
    assert (tmp_path / "other" / "precious").read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "run"]


@pytest.mark.parametrize(("name", "mode"), [("theirs", 0), ("tensorboard", 0o500)])
def test_a_folder_in_a_run_that_cannot_be_read_or_written_stays(
    name: str, mode: int, board: Graph, tmp_path: Path
) -> None:
    """A folder without rights in the run of somebody who is not root, as a container leaves them."""
    alone = ["unshare", "--user"]  # an unknown user without rights to override those of files
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this system does not let a test be another user (unshare)")
    job(board, tmp_path / "run").run("cpu")
    (tmp_path / "run" / name).mkdir(exist_ok=True)
    (tmp_path / "run" / name / "adar-deploy").touch()
    (tmp_path / "run" / name).chmod(mode)
    subprocess.run([*alone, sys.executable, "-c", SAVE_AGAIN], cwd=tmp_path, check=True)
    assert load_run(tmp_path / "run").config["data"] == ["again"]
    assert (tmp_path / "run" / name).is_dir()
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_a_supervisor_can_always_resume(board: Graph, tmp_path: Path) -> None:
    """Nothing there, killed before the first checkpoint, and finished: the same command works."""
    notes: list[str] = []
    one = job(board, tmp_path / "run")
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)  # of a training that was killed early
    metrics = one.run("cpu", resume=True, on_note=notes.append)
    assert notes == [f"no checkpoint in {tmp_path / 'run'}: training starts from the beginning"]
    before = contents(tmp_path / "run")
    again = one.run("cpu", resume=True, on_note=notes.append)
    assert notes[1:] == [f"{tmp_path / 'run'} is finished: nothing to resume"]
    assert again == json.loads(json.dumps(metrics))
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("where", ["adar_train.trainer.calibrated_metrics", "adar_train.job.save_run"])
def test_a_signal_after_the_last_epoch_loses_no_epoch(
    board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    one, epochs = job(board, tmp_path / "my run"), list[Epoch]()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as found:
        patch.setattr(where, interrupted)
        one.run("cpu", epochs.append)
    assert [epoch.number for epoch in epochs] == [1, 2]
    assert found.value.__notes__ == [
        f"to continue, run the same command with --resume --out '{tmp_path / 'my run'}'"
    ]
    metrics = one.run("cpu", epochs.append, resume=True)
    assert len(epochs) == 2  # no epoch was repeated
    assert metrics["test"] == job(board, tmp_path / "other").run("cpu")["test"]
    assert not (tmp_path / "my run" / "checkpoint.safetensors").exists()


def test_a_signal_in_the_search_says_that_there_is_no_checkpoint(board: Graph, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    choices = [{"dropout": 0.0}, {"dropout": 0.1}]
    with pytest.raises(KeyboardInterrupt) as found:
        job(board, tmp_path / "run").run("cpu", choices=choices, on_search=interrupted)
    assert found.value.__notes__ == ["there is no checkpoint yet: the same command starts from the beginning"]


def test_a_finished_run_of_other_data_or_another_model_is_not_taken_for_this_one(
    board: Graph, tmp_path: Path
) -> None:
    """The names are equal, as those of graphs in memory, or of a file with new content."""
    one = job(board, tmp_path / "run")
    one.run("cpu")
    assert board.labels is not None
    relabelled = replace(board, labels=1 - board.labels)
    for other in (replace(one, graphs=[relabelled]), replace(one, baseline="gcn")):
        with pytest.raises(UsageError, match="contains a finished run"):
            other.run("cpu", resume=True)


def test_two_trainings_do_not_write_to_one_folder(board: Graph, tmp_path: Path) -> None:
    """The second one would replace the weights and checkpoints of the first, also before they exist."""
    one = job(board, tmp_path / "runs" / "board")
    refused: list[str] = []

    def start_another(_: Epoch) -> None:
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(UsageError, match="another training writes to") as error:
                replace(one, training=replace(one.training, seed=1)).run("cpu", **options)
            refused.append(str(error.value))

    metrics = one.run("cpu", start_another)
    assert len(refused) == 6
    assert json.loads((one.out / "metrics.json").read_text())["seed"] == metrics["seed"] == 0


def test_a_training_that_fails_at_once_leaves_no_folder(board: Graph, tmp_path: Path) -> None:
    one = job(replace(board, train_mask=None), tmp_path / "runs" / "board")
    with pytest.raises(GraphError, match="no train_mask"):
        one.run("cpu")
    assert list(tmp_path.iterdir()) == []


def test_gradient_checkpoints_give_the_same_run(board: Graph, tmp_path: Path) -> None:
    for name, checkpoints in (("plain", False), ("saved", True)):
        one = job(board, tmp_path / name)
        replace(one, training=replace(one.training, gradient_checkpoints=checkpoints)).run("cpu")
    histories = [json.loads((tmp_path / name / "history.json").read_text()) for name in ("plain", "saved")]
    assert [row["loss"] for row in histories[0]] == pytest.approx(
        [row["loss"] for row in histories[1]], rel=1e-5
    )


def test_tensorboard_reads_the_log(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        log.write(Epoch(1, 0.5, None))
        log.write(Epoch(2, 0.25, 0.75))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("best val")] == [(2, 0.75)]


def test_the_log_is_complete_when_the_run_is_written(
    board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without hard links gets a copy of it, which had no events of the last second."""
    done, close = [], SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda writer: (done.append("closed"), close(writer)))
    monkeypatch.setattr("adar_train.job.save_run", lambda *_: done.append("saved"))
    job(board, tmp_path / "run").run("cpu")
    assert done == ["closed", "saved"]


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adar_train.job.find_spec", lambda _: None)
    with TensorBoardLog(tmp_path / "log") as log:
        log.write(Epoch(1, 0.5, None))
    assert not (tmp_path / "log").exists()
