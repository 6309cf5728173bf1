"""Prediction files: every format of the registry, and a toy format that is added to it."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Result, StopReason, prediction_files
from adar_runtime.errors import GraphError, MissingExtraError, UsageError
from adar_runtime.prediction_files import (
    OUTPUT_FORMATS,
    OutputFormat,
    prediction_columns,
    prediction_writer,
)


def answer(
    probabilities: np.ndarray | list, names: tuple[str, ...] | None = None, ids: np.ndarray | None = None
) -> Result:
    """The result with these probabilities."""
    with np.errstate(divide="ignore"):
        scores = np.maximum(np.log(np.asarray(probabilities, np.float32)), -100)
    return Result(scores, [0.0], [0.0], 1, 0, StopReason.CANCELLED, "none", {}, class_names=names, ids=ids)


def written(suffix: str, result: Result) -> bytes:
    return prediction_writer(Path(f"p{suffix}"))(result)


TWO = [[0.25, 0.75], [0.5, 0.5]]


def test_predictions_in_every_format(tmp_path: Path) -> None:
    result = answer(TWO)
    (tmp_path / "p.npz").write_bytes(written(".npz", result))
    with np.load(tmp_path / "p.npz") as arrays:
        assert sorted(arrays) == ["prediction", "probability"]
        assert np.array_equal(arrays["prediction"], [1, 0])
        assert np.array_equal(arrays["probability"], TWO)
    assert written(".csv", result).decode().splitlines() == [
        "output,prediction,probability_0,probability_1",
        "0,1,0.25,0.75",
        "1,0,0.5,0.5",
    ]
    assert written(".json", result) == b'{"prediction": [1, 0], "probability": [[0.25, 0.75], [0.5, 0.5]]}'
    with pytest.raises(UsageError, match=r"\.npz, \.csv, \.json or \.parquet"):
        prediction_writer(Path("p.xlsx"))


def test_predictions_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "p.parquet").write_bytes(written(".parquet", answer(TWO)))
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }


def test_files_contain_the_names_of_predicted_classes(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result = answer(TWO, ("safe", "mine"))
    for suffix in (".npz", ".parquet"):
        (tmp_path / f"p{suffix}").write_bytes(written(suffix, result))
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["class_names"].tolist() == ["safe", "mine"]
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "class": ["mine", "safe"],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }
    assert written(".csv", result).decode().splitlines() == [
        "output,prediction,class,probability_0,probability_1",
        "0,1,mine,0.25,0.75",
        "1,0,safe,0.5,0.5",
    ]
    assert json.loads(written(".json", result))["class"] == ["mine", "safe"]


@pytest.mark.parametrize("ids", [["x-1", "y"], [7, -3]])
def test_every_format_has_the_ids(ids: list, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result = answer(TWO, ("safe", "mine"), np.array(ids))
    table = {
        "id": ids,
        "class": ["mine", "safe"],
        "probability_safe": [0.25, 0.5],
        "probability_mine": [0.75, 0.5],
    }
    assert {name: column.tolist() for name, column in prediction_columns(result).items()} == table
    assert json.loads(written(".json", result)) == table
    for suffix in (".npz", ".parquet"):
        (tmp_path / f"p{suffix}").write_bytes(written(suffix, result))
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == table
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["id"].tolist() == ids
        assert arrays["class_names"].tolist() == ["safe", "mine"]
    assert written(".csv", result).decode().splitlines() == [
        "id,class,probability_safe,probability_mine",
        f"{ids[0]},mine,0.25,0.75",
        f"{ids[1]},safe,0.5,0.5",
    ]


def test_arrow_keeps_what_follows_a_nul_character(tmp_path: Path) -> None:
    """pyarrow ends a text of numpy there, so that two ids could become equal."""
    parquet = pytest.importorskip("pyarrow.parquet")
    result = answer(TWO, ids=np.array(["a\0b", "a\0c"]))
    assert result.to_arrow()["id"].to_pylist() == ["a\0b", "a\0c"]
    (tmp_path / "p.parquet").write_bytes(written(".parquet", result))
    assert parquet.read_table(tmp_path / "p.parquet")["id"].to_pylist() == ["a\0b", "a\0c"]
    pairs = replace(result, ids=np.array([["a\0b", "x"], ["y", "a\0c"]]))
    assert pairs.to_arrow()["target"].to_pylist() == ["y", "a\0c"]


def test_columns_of_pairs_of_unnamed_classes_and_of_numbers() -> None:
    pairs = answer(TWO, None, np.array([["a", "b"], ["c", "d"]]))
    assert written(".csv", pairs).decode().splitlines()[:2] == [
        "source,target,class,probability_0,probability_1",
        "a,c,1,0.25,0.75",
    ]
    twice = answer(TWO, ("same", "same"), np.array(["a", "b"]))
    assert list(prediction_columns(twice)) == ["id", "class", "probability_0", "probability_1"]
    numbers = replace(answer([[1.0], [1.0]], None, np.array([5, 6])), regression=True)
    assert written(".csv", numbers).decode().splitlines() == ["id,prediction_0", "5,0.0", "6,0.0"]


def test_some_outputs_only() -> None:
    some = answer([*TWO, [0.75, 0.25]]).select([2, 0])
    assert written(".csv", some).decode().splitlines()[1:] == ["2,0,0.75,0.25", "0,1,0.25,0.75"]
    assert json.loads(written(".json", some))["output"] == [2, 0]
    assert some.select([1]).outputs.tolist() == [0]
    named = answer(TWO, None, np.array(["a", "b"])).select([1])
    assert named.ids.tolist() == ["b"]
    with pytest.raises(UsageError, match="positions from 0 to 0"):
        named.select([1])


def test_a_mask_chooses_outputs() -> None:
    """Its booleans were taken for the positions 0 and 1, and numbers were cut to whole ones."""
    whole = answer([*TWO, [0.75, 0.25]], None, np.array(["a", "b", "c"]))
    for mask in (np.array([False, True, True]), [False, True, True]):
        assert whole.select(mask).ids.tolist() == ["b", "c"]
        assert whole.select(mask).outputs.tolist() == [1, 2]
    assert whole.select([]).scores.shape == (0, 2)
    with pytest.raises(UsageError, match=r"the mask has the shape \[2\], and the result has 3 outputs"):
        whole.select([True, False])
    with pytest.raises(UsageError, match=r"shape \[1, 3\]"):
        whole.select([[True, False, True]])
    with pytest.raises(GraphError, match="masked values"):
        whole.select(np.ma.array([0, 1], mask=[True, False]))
    for wrong in ([0.7, 1.9], ["1"]):
        with pytest.raises(UsageError, match="give whole numbers, or a mask"):
            whole.select(wrong)


def test_blocks_of_rows_give_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    result = answer(random.random((50, 2)), ("safe", "mine"), np.array([f"id {i}" for i in range(50)]))
    whole = written(".csv", result)
    monkeypatch.setattr(prediction_files, "BLOCK_ROWS", 7)
    assert written(".csv", result) == whole
    assert len(whole.splitlines()) == 51


HOSTILE = ("=1+1", "@x", "-cmd", "a\x1b[2J", "two\nlines", 'quo"te,comma', "\ud800", "-1.5", "日本")


@pytest.mark.parametrize("suffix", OUTPUT_FORMATS)
def test_class_names_may_contain_any_characters(suffix: str) -> None:
    count = len(HOSTILE)
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    content = written(suffix, answer(np.eye(count), HOSTILE))
    if suffix == ".csv":
        shown = [row[2] for row in csv.reader(content.decode().splitlines())][1:]
        kept = ['quo"te,comma', "\\ud800", "-1.5", "日本"]
        assert shown == ["'=1+1", "'@x", "'-cmd", "a\\x1b[2J", "two\\nlines", *kept]
    if suffix == ".json":
        assert tuple(json.loads(content)["class"]) == HOSTILE
    ids = np.array([f"n{i}" for i in range(count)])
    assert written(suffix, answer(np.eye(count), HOSTILE, ids))  # the names are in the headings


@pytest.mark.parametrize(
    "name",
    [
        "a;=cmd()",
        "a,=cmd()",
        "a|@x",
        "a:-x",
        'a;"=cmd()"',
        'a; ""+x',
        "\t=1",
        "a;=1;=2",
        "＝cmd()",
        "x;＠y",
        ' "=1',
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "|", ":", "\t"])
@pytest.mark.parametrize("quotes", ["kept", "removed"])
def test_no_separator_uncovers_a_formula(name: str, separator: str, quotes: str) -> None:
    """However a spreadsheet splits the lines, no class name, heading or id begins like a formula."""
    contents = (
        written(".csv", answer([[1]], (name,))),
        written(".csv", answer([[1]], (name,), np.array([name]))),
    )
    reading = csv.QUOTE_NONE if quotes == "kept" else csv.QUOTE_MINIMAL
    lines = b"".join(contents).decode().splitlines()
    for row in csv.reader(lines, delimiter=separator, quoting=reading):
        for cell in row:
            assert not cell.lstrip(' "').startswith(tuple("=+-@＝＋－＠")), row


@pytest.mark.parametrize("name", ["-1", "-1.5e3", "plain", "a-b", "x = y", "C++", "mail@host", "a; b"])
def test_other_names_stay_as_they_are(name: str) -> None:
    content = written(".csv", answer([[1]], (name,))).decode()
    assert content.splitlines()[1].split(",")[2] == name
    content = written(".csv", answer([[1]], None, np.array([name]))).decode()
    assert content.splitlines()[1].split(",")[0] == name


def test_parquet_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_files, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"adar-deploy\[parquet\]"):
        prediction_writer(Path("p.parquet"))


def test_a_new_output_format_is_one_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy format: one prediction per line."""

    def lines(result: Result) -> bytes:
        return "\n".join(map(str, result.predictions.tolist())).encode()

    monkeypatch.setitem(OUTPUT_FORMATS, ".lines", OutputFormat(lines))
    assert written(".lines", answer(TWO)) == b"1\n0"
    with pytest.raises(UsageError, match=r"\.json, \.parquet or \.lines; got no suffix"):
        prediction_writer(Path("p"))


def test_the_help_of_run_names_every_suffix() -> None:
    """The help is fixed text: commands start without numpy, and the registry imports it."""
    source = (Path(__file__).parents[2] / "adar_deploy/commands/run.py").read_text()
    (line,) = (line for line in source.splitlines() if "help=" in line and "predictions" in line.lower())
    for suffix in OUTPUT_FORMATS:
        assert suffix in line
