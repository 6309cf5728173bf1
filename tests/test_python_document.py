"""The examples of docs/python.md run, in order."""

import re
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import adar_export
import adar_train.config
from adar_runtime import write_graph
from adar_runtime.graph.synthetic import minesweeper

DOCUMENT = Path(__file__).parents[1] / "docs" / "python.md"


def as_data(side: int) -> Data:
    board = minesweeper(side=side)
    tensors = map(torch.from_numpy, (board.features, board.edge_index, board.labels))
    return Data(**dict(zip(("x", "edge_index", "y"), tensors, strict=True)))


def test_the_examples_of_the_document_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer epochs, budgets and comparisons, and no other change."""
    preset, export = adar_train.config.preset, adar_export.export_bundle
    few = {"epochs": 2, "select_budgets": (2,), "exit_budgets": (2, 3)}
    monkeypatch.setattr(adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), **few))
    monkeypatch.setattr(adar_export, "export_bundle", update_wrapper(partial(export, steps=(1, 2)), export))
    monkeypatch.chdir(tmp_path)
    write_graph("graph.npz", minesweeper(side=10))
    people = [f"p{number},{number % 7},{'cats' if number % 2 else 'dogs'}" for number in range(40)]
    Path("people.csv").write_text("\n".join(["person,age,group", *people]))
    friends = [f"p{number},p{(number + 2) % 40}" for number in range(40)]
    Path("friends.csv").write_text("\n".join(["source,target", *friends]))
    names = {"data": as_data(12), "other": as_data(10)}
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    printed = capsys.readouterr().out
    assert "labels are from 'club': 2 classes" in printed
    assert "train has no option 'epoch' (did you mean epochs?)" in printed
    assert (tmp_path / "predictions.csv").is_file()
    assert names["tomorrow"].ids[0] == "p0"
    assert "Reliability" in (tmp_path / "report.html").read_text()
    assert list(names["table"].columns) == ["output", "prediction", "probability_0", "probability_1"]
