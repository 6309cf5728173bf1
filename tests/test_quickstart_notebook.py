"""The notebook runs from top to bottom in a real kernel, and its objects show tables and a picture."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
# The same work on smaller towns: a few epochs, and few steps of calibration and comparison.
SHORT = """
import dataclasses, functools
import adar_export
import adar_train.config as config

_preset = config.preset
_few = {"epochs": 3, "select_budgets": (3,), "exit_budgets": (3, 5)}
config.preset = lambda *a, **k: dataclasses.replace(_preset(*a, **k), **_few)
adar_export.export_bundle = functools.wraps(adar_export.export_bundle)(
    functools.partial(adar_export.export_bundle, steps=(1, 2))
)
"""


def outputs(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    return [one["data"][kind] for one in cell.outputs if kind in one.get("data", {})]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[nbformat.NotebookNode, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"town\((\d)00,", r"town(\g<1>0,", cell.source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SHORT))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook, folder


def cell_with(notebook: nbformat.NotebookNode, text: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)


def test_the_notebook_runs(executed) -> None:
    notebook, folder = executed
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    printed = [one.text for one in outputs if one.output_type == "stream"]
    # PyG's import asks for ipywidgets; nothing else is printed.
    assert [text for text in printed if "TqdmWarning: IProgress not found" not in text] == []
    assert {"bundle", "graph.npz", "predictions.csv"} <= {path.name for path in folder.iterdir()}


def test_progress_is_one_output_that_is_updated(executed) -> None:
    trained = cell_with(executed[0], "adar.train(")
    bars = [html for html in outputs(trained, "text/html") if "<progress" in html]
    assert len(bars) == 1
    assert re.search(r"<progress value='3' max='3'></progress> loss \d", bars[0])
    said = " ".join(outputs(trained, "text/plain"))
    assert "drew the missing train_mask, val_mask, test_mask at random: 36 train, 12 val, 12 test" in said


@pytest.mark.parametrize(
    ("source", "kind", "shown"),
    [
        ("adar.train(", "text/html", "<b>TrainedModel</b>"),
        ("model.export(", "text/html", "differs from PyTorch by"),
        ("bundle.predict(", "text/html", "<b>Result</b>"),
        ("to_pandas", "text/html", "<th>probability_1</th>"),
        ("result.plot()", "image/png", "iVBOR"),
        ("bundle.evaluate(", "text/html", "budget 300"),
    ],
)
def test_the_objects_show_themselves(executed, source: str, kind: str, shown: str) -> None:
    assert any(shown in one for one in outputs(cell_with(executed[0], source), kind))


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in codes)
    first = cell_with(notebook, "find_spec").source
    assert '%pip install --quiet "adar-deploy[cpu,export]" pandas' in first  # Colab has neither
