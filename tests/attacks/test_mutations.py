"""Mutated manifests, run folders and configurations: success, or one line and exit code 2."""

import random
import shutil
from pathlib import Path

import pytest

from adar_deploy import model_folders
from adar_deploy.bundle_output import readable
from adar_deploy.configuration import read_defaults
from adar_runtime import Graph, write_graph
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import AdarError
from adar_runtime.json_files import parse_json
from adar_train import load_run
from fuzz import mutations

COUNT = 300  # mutations of each kind that are read in this process
COMMANDS = 12  # mutations of each kind that commands read


@pytest.fixture
def home(
    board: Graph, bundle_folder: Path, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with a valid graph, bundle and run."""
    write_graph(tmp_path / "g.npz", board)
    shutil.copytree(bundle_folder, tmp_path / "bundle")
    shutil.copytree(run_folder, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mutate(kind: str, seed: int) -> str:
    """Change the files of the working folder. The files to change are restored by `restored`."""
    change, inside, _ = mutations.TARGETS[kind]
    return change(Path(inside), random.Random(f"{kind} {seed}"))


def is_short(error: AdarError) -> bool:
    return len(str(error)) < 1000


class Restored:
    """Keeps the text of files, and writes it back after each mutation."""

    def __init__(self, *files: Path) -> None:
        self._texts = {file: file.read_text() for file in files}

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for file, text in self._texts.items():
            file.write_text(text)


def test_a_mutated_manifest_is_read_or_refused(home: Path) -> None:
    refused, file = 0, home / "bundle" / "manifest.json"
    for seed in range(COUNT):
        with Restored(file):
            mutate("manifest", seed)
            try:
                manifest = Manifest.from_json(file.read_text())
                assert Manifest.from_json(manifest.to_json()) == manifest or "NaN" in manifest.to_json()
            except AdarError as error:
                refused += is_short(error)
    assert COUNT / 4 < refused < COUNT


def test_a_mutated_run_is_read_or_refused(home: Path) -> None:
    refused, run = 0, home / "run"
    files = [run / name for name in ("config.json", "metrics.json", "history.json")]
    for seed in range(COUNT):
        with Restored(*files):
            mutate("run", seed)
            try:
                load_run(run).class_names()
                model_folders.open_subject(run).make_rule()
                with readable(run):
                    model_folders.ModelFolders(run, None).read("history.json")
            except AdarError as error:
                refused += is_short(error)
    assert COUNT / 10 < refused < COUNT


def test_a_mutated_configuration_is_read_or_refused(home: Path) -> None:
    import typer

    from adar_deploy.cli import app

    group, refused = typer.main.get_command(app), 0
    for seed in range(COUNT):
        mutate("configuration", seed)
        for name in ("adar.toml", "pyproject.toml"):
            if (home / name).exists():
                try:
                    read_defaults(group, [Path(name)], named=True)
                except AdarError as error:
                    refused += is_short(error)
                (home / name).unlink()
    assert COUNT / 4 < refused < COUNT


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("kind", mutations.TARGETS)
def test_commands_report_mutations_in_one_line(kind: str) -> None:
    commands = mutations.TARGETS[kind][2]
    for seed in range(COMMANDS):
        chance = random.Random(seed)
        files = [Path("bundle/manifest.json"), *Path("run").glob("*.json")]
        with Restored(*files):
            text = mutate(kind, seed)
            try:
                mutations.check(*chance.choice(commands))
            except Exception as error:
                pytest.fail(f"{kind} {seed}: {type(error).__name__}: {error}; {text[:1000]}")
        for name in ("adar.toml", "pyproject.toml"):
            Path(name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "duplicate key"),
        ("[" * 51 + "]" * 51, "nested"),
        ("[" * 100_000, "nested"),
        (f"[{'9' * 301}]", "300 digits"),
        ('{"\\ud800": 1}', "not valid Unicode"),
        ('["\\ud800"]', "not valid Unicode"),
        ("", "Expecting value"),
    ],
)
def test_json_from_outside_is_strict(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    assert parse_json("[" * 50 + "]" * 50 + " ") is not None
    assert parse_json('{"a": [NaN, "\\ud83d\\ude00", 1e9]}')["a"][1] == "😀"
