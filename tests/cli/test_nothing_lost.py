"""Runs and bundles are not replaced by accident, and a bundle finds the run that it was exported from."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import adar_export
import adar_train.config
from adar_runtime import Graph, write_graph
from adar_train import ModelConfig, TrainConfig, fit, save_run

pytestmark = pytest.mark.usefixtures("short")
TRAIN = (
    *("train", "board.npz", "--preset", "quick", "--epochs", 2),
    *("--hidden", 8, "--proxies", 2, "--train-steps", 1),
)


def digest(folder: Path) -> str:
    """One hash of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer budgets to calibrate and to compare, and no other change."""
    preset = adar_train.config.preset
    few = {"select_budgets": (2,), "exit_budgets": (2,)}
    monkeypatch.setattr(adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), **few))
    monkeypatch.setattr(adar_export, "export_bundle", partial(adar_export.export_bundle, steps=(1, 2)))


@pytest.fixture(scope="module")
def other_run(board: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("other") / "other"
    training = TrainConfig(epochs=1, train_steps=2, seed=7, select_budgets=(2,), exit_budgets=(2,))
    model = fit([board], ModelConfig(board.width, 2, hidden=8, proxies=2), training)
    save_run(path, model, board, ["board"], training)
    return path


def test_train_does_not_replace_a_finished_run(adar, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    assert adar(*TRAIN)[0] == 0
    assert adar(*TRAIN)[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["board", "board-2"]
    before = digest(tmp_path / "runs/board")
    code, out, err = adar(*TRAIN, "--out", "runs/board")
    assert (code, out) == (2, "")
    assert err == (
        "error: runs/board contains a finished run: choose another --out, or replace it with --overwrite\n"
    )
    assert digest(tmp_path / "runs/board") == before
    assert adar(*TRAIN, "--seed", 1, "--out", "runs/board", "--overwrite")[0] == 0
    assert digest(tmp_path / "runs/board") != before


@pytest.mark.parametrize("folder", [".", "..", "../graphs/."])
def test_the_run_of_the_working_folder_has_its_name(
    folder: str, adar, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written into runs/ itself, where export does not look for it."""
    work = tmp_path / "graphs" / ("inner" if folder == ".." else "")
    work.mkdir(parents=True)
    write_graph(tmp_path / "graphs/board.npz", board)
    monkeypatch.chdir(work)
    assert adar("train", folder, *TRAIN[2:])[0] == 0
    assert [path.name for path in (work / "runs").iterdir()] == ["graphs"]


def test_resume_without_a_checkpoint_starts_and_says_so(adar, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    assert "--resume needs --out" in adar(*TRAIN, "--resume")[2]
    code, _, err = adar(*TRAIN, "--resume", "--out", "r")
    assert (code, err) == (0, "note: no checkpoint in r: training starts from the beginning\n")
    code, out, err = adar(*TRAIN, "--resume", "--out", "r", "--json")
    assert (code, err) == (0, "note: r is finished: nothing to resume\n")
    assert json.loads(out)["epochs"] == 2


def test_export_does_not_replace_the_bundle_of_another_model(
    adar, run_folder: Path, other_run: Path, tmp_path: Path
) -> None:
    assert adar("export", other_run)[0] == 0
    assert adar("export", other_run, "--precision", "fp16")[0] == 0, "the same model"
    before = digest(tmp_path / "bundle")
    code, out, err = adar("export", run_folder)
    assert (code, out) == (2, "")
    assert err == (
        "error: bundle contains a bundle of another model: choose another --out, or replace it with "
        "--overwrite\n"
    )
    assert digest(tmp_path / "bundle") == before
    (tmp_path / "bundle/manifest.json").write_text(
        '{"graphs": {}}'
    )  # damaged: whose bundle it was is unknown
    assert adar("export", other_run)[0] == 2
    assert adar("export", run_folder, "--overwrite")[0] == 0
    assert adar("validate", "bundle", "--run", run_folder, "--steps", 1)[0] == 0


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "model.sig"])
def test_export_does_not_replace_files_that_somebody_added_to_the_bundle(
    name: str, adar, other_run: Path, tmp_path: Path
) -> None:
    assert adar("export", other_run)[0] == 0
    (tmp_path / "bundle" / name).write_text("mine")
    code, out, err = adar("export", other_run, "--precision", "fp16")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: bundle/{name} was added or edited since the last export")
    assert (tmp_path / "bundle" / name).read_text() == "mine"
    assert adar("export", other_run, "--overwrite")[0] == 0


def test_export_replaces_a_bundle_with_the_card_of_another_version(
    adar, other_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adar_export import writer

    with monkeypatch.context() as patched:
        patched.setattr(writer, "model_card", lambda _: "# An older card\n")
        assert adar("export", other_run)[0] == 0
    assert "older" in Path("bundle/README.md").read_text()
    assert adar("export", other_run)[0] == 0
    assert "older" not in Path("bundle/README.md").read_text()


def test_validate_and_report_find_the_run_beside_the_bundle_or_name_it(
    adar, other_run: Path, tmp_path: Path
) -> None:
    """Also where the run is not in runs/, and where the command runs in another folder."""
    shutil.copytree(other_run, tmp_path / "project/zs")
    (tmp_path / "project/config.json").write_text("not JSON")
    (tmp_path / "project/strange").mkdir()
    (tmp_path / "project/strange/config.json").write_text("[1]")
    assert adar("export", "project/zs", "--out", "project/zs-bundle")[0] == 0
    assert adar("validate", "project/zs-bundle", "--steps", 1)[0] == 0
    report = ("report", "project/zs-bundle", "--budgets", 2, "--json")
    assert json.loads(adar(*report)[1])["run"] == "project/zs"
    (tmp_path / "project/runs").mkdir()
    (tmp_path / "project/zs").rename(tmp_path / "project/runs/moved")
    assert adar("validate", "project/zs-bundle", "--steps", 1)[0] == 0
    shutil.rmtree(tmp_path / "project/runs")
    code, _, err = adar("validate", "project/zs-bundle")
    assert code == 2
    assert "the run 'zs' (weights " in err
    assert "is not in runs or project or project/runs: give its folder with --run" in err
    notes = json.loads(adar(*report)[1])["notes"]
    assert any("the run 'zs' (weights " in note and "--run" in note for note in notes)


def test_a_default_output_is_not_replaced(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    """Nobody named these files. They are replaced only if --output names them."""
    commands = {
        "report.html": ("report", bundle_folder, "board.npz", "--budgets", 2),
        "minesweeper.npz": ("data", "make", "minesweeper", "--nodes", 100),
    }
    write_graph(tmp_path / "board.npz", board)
    for name, command in commands.items():
        file = tmp_path / name
        file.write_text("mine")
        code, _, err = adar(*command)
        assert (code, err) == (
            2,
            f"error: {name} exists: to replace it, name it (--output {name}), or choose another name\n",
        )
        assert file.read_text() == "mine"
        assert adar(*command, "--output", name)[0] == 0
        assert file.read_bytes() != b"mine"


@pytest.mark.parametrize("name", ["report.html", "minesweeper.npz"])
def test_a_default_output_that_appears_meanwhile_is_not_replaced(
    name: str, adar, bundle_folder: Path, board: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graph("board.npz", board)
    command = {
        "report.html": ("report", bundle_folder, "board.npz", "--budgets", 2),
        "minesweeper.npz": ("data", "make", "minesweeper", "--nodes", 100),
    }[name]
    fsync = os.fsync

    def slow(descriptor: int) -> None:  # the last that is done before the file gets its name
        Path(name).write_text("mine")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    code, _, err = adar(*command)
    assert (code, f"{name} exists" in err, Path(name).read_text()) == (2, True, "mine")
    assert adar(*command, "--output", name)[0] == 0


def test_an_older_page_of_a_report_is_replaced(adar, bundle_folder: Path, board: Graph) -> None:
    write_graph("board.npz", board)
    pages = []
    for budget in (2, 3):
        assert adar("report", bundle_folder, "board.npz", "--budgets", budget)[0] == 0
        pages.append(Path("report.html").read_text())
    assert pages[0] != pages[1]
    Path("report.html").unlink()
    Path("report.html").symlink_to("nowhere")
    assert adar("report", bundle_folder, "board.npz", "--budgets", 2)[0] == 2
