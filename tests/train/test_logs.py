from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from adar_train.fit import Epoch
from adar_train.logs import Log


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.epoch(Epoch(1, 0.5, None))
        log.epoch(Epoch(2, 0.25, 0.75))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("best val")] == [(2, 0.75)]


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("adar_train.logs.find_spec", lambda _: None)
    with Log(tmp_path / "log") as log:
        log.epoch(Epoch(1, 0.5, None))
    assert not (tmp_path / "log").exists()
