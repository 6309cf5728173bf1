"""Long work whose output goes to a file: a plain line on stderr now and then, and nothing of it on stdout."""

import io
import itertools
import json
import re
from pathlib import Path

import pytest

from adar_deploy import console, live_status
from adar_deploy.console import Bar
from adar_runtime import Graph, write_graph

SMALL = ("--hidden", 8, "--proxies", 4, "--train-steps", 2)


@pytest.fixture
def eager(adar, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program that finds every tenth worth a line, beside a graph."""
    write_graph(tmp_path / "board.npz", board)
    monkeypatch.setattr(console, "LOG_INTERVAL", 0.0)
    monkeypatch.setattr(live_status, "REFRESH", 0.0)
    return adar


def test_training_tells_a_log_how_far_it_is(eager) -> None:
    code, out, err = eager("train", "board.npz", "--epochs", 20, "--no-search", *SMALL, "--json")
    assert (code, json.loads(out)["epochs"]) == (0, 20)
    lines = err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{epoch}/20" for epoch in range(2, 21, 2)]
    begin = r"train  \d+/20  loss \d\.\d{4}(  best val \d+\.\d\d %)?.*  after \d+ s"
    for line in lines[:-1]:
        assert re.fullmatch(begin + r", about \d+ s left", line), line
    assert re.fullmatch(begin, lines[-1])
    assert "best val" in lines[-1]
    assert "calibrating the stop rule" in lines[-1]


@pytest.mark.parametrize("shown", [True, False])
def test_a_run_tells_a_log_too_unless_it_is_to_be_quiet(eager, bundle_folder: Path, shown: bool) -> None:
    options = ["--bundle", bundle_folder, "--max-steps", 40, "--exit", "final"]
    code, _, err = eager("run", "board.npz", *options, *([] if shown else ["--quiet"]))
    assert code == 0
    assert ("run  50%  step 20  t 0.50  alignment " in err) == shown
    assert len(err.splitlines()) == (10 if shown else 0)
    assert err.isascii()


@pytest.mark.parametrize("width", [50, 60, 89, 90, 200])
def test_a_bar_shows_its_count_and_the_time_left_at_every_width(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The status is cut in a narrow terminal."""
    shown = io.StringIO()
    monkeypatch.setattr(console, "err", console.Messages(file=shown, width=width, force_terminal=True))
    bar = Bar("train", 1060)
    bar.update(26, "search: epoch 26 of weight decay 1e-06, dropout 0.2")
    console.err.print(bar._progress, end="")
    (line,) = (re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.getvalue().splitlines())
    assert line.startswith("train ")
    assert "26/1060 search: epoch 26" in line
    assert line.rstrip().endswith("--:--")
    assert len(line) <= width


@pytest.mark.parametrize(
    ("seconds_an_epoch", "told"),
    [
        (0.05, []),  # five seconds in all
        (0.5, [20, 40, 60, 80, 100]),  # fifty: a tenth takes five, and two of them a line
        (0.75, [14, 28, 42, 56, 70, 84, 98, 100]),  # and the end, however soon it comes after
        (3, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        (30, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]),  # a line a minute
    ],
)
def test_quick_work_is_not_told_and_slow_work_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys, seconds_an_epoch: float, told: list[int]
) -> None:
    clock = itertools.count(step=seconds_an_epoch)
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with Bar("train", 100) as bar:
        for epoch in range(1, 101):
            bar.update(epoch, "")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [int(line.split()[1].split("/")[0]) for line in captured.err.splitlines()][:10] == told
