"""Prediction files: every format of the registry, and a toy format that is added to it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import prediction_files
from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.prediction_files import OUTPUT_FORMATS, OutputFormat, prediction_writer


def test_predictions_in_every_format(tmp_path: Path) -> None:
    prediction, probability = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    (tmp_path / "p.npz").write_bytes(prediction_writer(Path("p.npz"))(prediction, probability, None))
    with np.load(tmp_path / "p.npz") as written:
        assert np.array_equal(written["prediction"], prediction)
        assert np.array_equal(written["probability"], probability)
    assert prediction_writer(Path("p.csv"))(prediction, probability, None).decode().splitlines() == [
        "output,prediction,probability_0,probability_1",
        "0,1,0.25,0.75",
        "1,0,0.5,0.5",
    ]
    assert prediction_writer(Path("p.json"))(prediction, probability, None) == (
        b'{"prediction": [1, 0], "probability": [[0.25, 0.75], [0.5, 0.5]]}'
    )
    with pytest.raises(UsageError, match=r"\.npz, \.csv, \.json or \.parquet"):
        prediction_writer(Path("p.xlsx"))


def test_predictions_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    prediction, probability = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    (tmp_path / "p.parquet").write_bytes(prediction_writer(Path("p.parquet"))(prediction, probability, None))
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }


def test_files_contain_the_names_of_predicted_classes(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answers = np.array([1, 0]), np.array([[0.25, 0.75], [0.5, 0.5]], np.float32), ("safe", "mine")
    for suffix in (".npz", ".parquet"):
        (tmp_path / f"p{suffix}").write_bytes(prediction_writer(Path(f"p{suffix}"))(*answers))
    with np.load(tmp_path / "p.npz") as written:
        assert written["class_names"].tolist() == ["safe", "mine"]
    assert parquet.read_table(tmp_path / "p.parquet").to_pydict() == {
        "output": [0, 1],
        "prediction": [1, 0],
        "class": ["mine", "safe"],
        "probability_0": [0.25, 0.5],
        "probability_1": [0.75, 0.5],
    }
    assert prediction_writer(Path("p.csv"))(*answers).decode().splitlines() == [
        "output,prediction,class,probability_0,probability_1",
        "0,1,mine,0.25,0.75",
        "1,0,safe,0.5,0.5",
    ]
    assert json.loads(prediction_writer(Path("p.json"))(*answers))["class"] == ["mine", "safe"]


def test_blocks_of_rows_give_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    answers = random.integers(0, 2, 50), random.random((50, 2)).astype(np.float32), ("safe", "mine")
    write = prediction_writer(Path("p.csv"))
    whole = write(*answers)
    monkeypatch.setattr(prediction_files, "BLOCK_ROWS", 7)
    assert write(*answers) == whole
    assert len(whole.splitlines()) == 51


HOSTILE = ("=1+1", "@x", "-cmd", "a\x1b[2J", "two\nlines", 'quo"te,comma', "\ud800", "-1.5", "日本")


@pytest.mark.parametrize("suffix", OUTPUT_FORMATS)
def test_class_names_may_contain_any_characters(suffix: str) -> None:
    count = len(HOSTILE)
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    write = prediction_writer(Path(f"p{suffix}"))
    content = write(np.arange(count), np.eye(count, dtype=np.float32), HOSTILE)
    if suffix == ".csv":
        shown = [row[2] for row in csv.reader(content.decode().splitlines())][1:]
        kept = ['quo"te,comma', "\\ud800", "-1.5", "日本"]
        assert shown == ["'=1+1", "'@x", "'-cmd", "a\\x1b[2J", "two\\nlines", *kept]
    if suffix == ".json":
        assert tuple(json.loads(content)["class"]) == HOSTILE


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
    """However a spreadsheet splits the lines, no cell begins like a formula."""
    content = prediction_writer(Path("p.csv"))(np.array([0]), None, (name,)).decode()
    reading = csv.QUOTE_NONE if quotes == "kept" else csv.QUOTE_MINIMAL
    for row in csv.reader(content.splitlines(), delimiter=separator, quoting=reading):
        for cell in row:
            assert not cell.lstrip(' "').startswith(tuple("=+-@＝＋－＠")), row


@pytest.mark.parametrize("name", ["-1", "-1.5e3", "plain", "a-b", "x = y", "C++", "mail@host", "a; b"])
def test_other_names_stay_as_they_are(name: str) -> None:
    content = prediction_writer(Path("p.csv"))(np.array([0]), None, (name,)).decode()
    assert content.splitlines()[1].split(",")[2] == name


def test_parquet_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_files, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"adar-deploy\[parquet\]"):
        prediction_writer(Path("p.parquet"))


def test_a_new_output_format_is_one_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy format: one prediction per line."""

    def lines(predictions: np.ndarray, _probabilities: object, _names: object) -> bytes:
        return "\n".join(map(str, predictions.tolist())).encode()

    monkeypatch.setitem(OUTPUT_FORMATS, ".lines", OutputFormat(lines))
    assert prediction_writer(Path("p.lines"))(np.array([1, 0]), None, None) == b"1\n0"
    with pytest.raises(UsageError, match=r"\.json, \.parquet or \.lines; got no suffix"):
        prediction_writer(Path("p"))


def test_the_help_of_run_names_every_suffix() -> None:
    """The help is fixed text: commands start without numpy, and the registry imports it."""
    source = (Path(__file__).parents[2] / "adar_deploy/commands/run.py").read_text()
    (line,) = (line for line in source.splitlines() if "help=" in line and "predictions" in line.lower())
    for suffix in OUTPUT_FORMATS:
        assert suffix in line
