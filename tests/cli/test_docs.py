"""The commands of the documents work, and the documents quote the messages of the program."""

import ast
import re
import runpy
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import typer.main

import adar_export
import adar_train.config
import adar_train.data
from adar_deploy.cli import app
from adar_deploy.report import measure
from adar_runtime import Graph, write_graph
from adar_runtime.graph.synthetic import minesweeper
from adar_runtime.selftest import accuracy
from adar_train import Trainer
from adar_train.data.splits import with_split
from docs.site.commands import command_pages
from tests.helpers import random_graph
from tests.texts import tiny_model, write_tables

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
# `train` prints these for a graph without a split, and for few epochs.
DREW = r".+: drew the missing .+ at random|.+: the pairs to classify are .+"
DRAWN = rf"note: ({DREW}|no search of the regularisation): .+"
GUESSED = r"note: .+\.csv: .+"  # and this for tables
NOT_HERE = re.compile(
    r"make |\. \.venv|pip install|torchrun |adar-deploy train pyg:|.*--backend tensorrt|"  # no network or GPU
    r"adar-deploy (bench|build|doctor|serve)|.*--plain"  # slow, and tested elsewhere
)


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of every block of code, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        command = re.sub(r"\s+#.*", "", line).strip()
        if command:
            yield command


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make training and export short: fewer epochs, budgets and nodes, and no other change."""
    preset = adar_train.config.preset
    few = {"epochs": 4, "evaluate_every": 2, "select_budgets": (3,), "exit_budgets": (3, 5)}
    monkeypatch.setattr(adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), **few))
    monkeypatch.setattr(adar_train.data, "make", lambda _: minesweeper(side=12))
    export = partial(adar_export.export_bundle, steps=(1, 2))
    monkeypatch.setattr(adar_export, "export_bundle", export)
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(accuracy, "STEPS", (1, 16))
    # The default model of `embed`, as if it had been downloaded before.
    cached = tmp_path / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    tiny_model(cached / "snapshots" / "0")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def write_pair(folder: Path) -> None:
    """nodes.csv, edges.csv, and the ids of two nodes."""
    nodes = [f"n{i},{i % 7},{'uv'[i % 2]}\n" for i in range(40)]
    (folder / "nodes.csv").write_text("id,x,y\n" + "".join(nodes))
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i * 3 % 40}\n" for i in range(40)))
    (folder / "ids.txt").write_text("n3\nn1\n")


def interrupted(adar, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the same training and interrupt it after its first epoch, so that `--resume` can continue it."""
    epoch = Trainer._epoch

    def stop(self: Trainer) -> None:
        if self.history:
            raise KeyboardInterrupt
        epoch(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_epoch", stop)
        assert adar(*(word for word in command if word != "--resume"))[0] == 130


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["README.md", "docs/usage.md", "docs/tutorial.md"])
def test_commands_and_examples_run_in_order(
    adar, name: str, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path)
    write_pair(tmp_path)
    (tmp_path / "graphs").mkdir()
    for place in ("graph", "more", "graphs/a", "graphs/b", "day1", "day2"):
        write_graph(tmp_path / f"{place}.npz", board)
    for place in ("arxiv", "dblp"):
        write_graph(tmp_path / f"{place}.npz", with_split(random_graph(60, 200, seed=len(place))))
    ran = 0
    twice = 1 + (name == "README.md")  # a reader may follow it again in the same folder
    for language, text in blocks(name) * twice:
        if language == "python":
            if "def town" in text:  # the tutorial asks the reader to save this block
                (tmp_path / "make_graph.py").write_text(text.replace("people=1000", "people=150"))
            else:
                exec(compile(text, name, "exec"), {})
            continue
        for command in lines(text):
            if NOT_HERE.match(command):
                continue
            program, *words = shlex.split(command)
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
                continue
            assert program == "adar-deploy", command
            if "--resume" in words:
                interrupted(adar, words, monkeypatch)
            code, _, err = adar(*words)
            unexpected = [line for line in err.splitlines() if not re.fullmatch(f"{DRAWN}|{GUESSED}", line)]
            assert (code, unexpected) == (0, []), command
            ran += 1
    assert ran >= 3


@pytest.mark.parametrize("name", ["docs/runtime.md", "docs/tensorrt.md"])
def test_examples_of_the_runtime_run(
    name: str, bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bundle_folder, tmp_path / "bundle")
    for place in ("graph", "graphs/a", "graphs/b"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        write_graph(tmp_path / f"{place}.npz", board)
    monkeypatch.chdir(tmp_path)
    code = "\n".join(text for language, text in blocks(name) if language == "python")
    assert code
    exec(compile(code, name, "exec"), {})


def test_the_tutorial_describes_its_town_correctly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(next(text for _, text in blocks("docs/tutorial.md") if "def town" in text), scope)
    hints, edges, group = scope["town"](0)
    text = (ROOT / "docs/tutorial.md").read_text()
    assert f"nodes, edges    {len(hints):,}, {edges.shape[1]:,}" in text
    assert f"right for {100 * np.mean(hints.argmax(axis=1) == group):.0f} %" in text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_command_exists(path: Path) -> None:
    """No document names a command or an option that the program does not have."""
    for language, text in blocks(str(path.relative_to(ROOT))):
        for line in lines(text) if language == "sh" else ():
            words = re.split(r"\s+", re.split(r"[;|]", line)[0])
            if words[0] == "adar-deploy" and not words[1].startswith("-"):
                check_options(words[1:])


def check_options(words: list[str]) -> None:
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "-h"}
    assert {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= known, words


def numbers(text: str) -> set[str]:
    """Written numbers, without the separators of thousands."""
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-\d+)?(?![\w.]*\d)", text.replace(",", "")))


@pytest.mark.parametrize(
    ("name", "heading"), [("README.md", "## Results"), ("docs/paper.md", "## Transductive")]
)
def test_figures_are_those_of_the_benchmarks(name: str, heading: str) -> None:
    """Every number in a table of results is in a document of benchmarks, rounded."""
    measured = numbers("".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.md")))
    section = (ROOT / name).read_text().split(heading)[1].split("\n## ")[0]
    rows = [line.split("|")[2:] for line in section.splitlines() if line.startswith("|")]
    shown = numbers(" ".join(cell for row in rows for cell in row))
    assert len(shown) > 7
    for number in shown:
        digits = len(number.partition(".")[2])
        assert number in measured or any(f"{float(m):.{digits}f}" == number for m in measured), number


def messages() -> list[str]:
    """Every string in the code, with … for each inserted value."""
    found = []
    for folder in ("adar_deploy", "runtime", "train", "export", "serve"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append(
                        "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def test_troubleshooting_quotes_the_messages_of_the_program() -> None:
    known = messages()
    headings = re.findall(r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(headings) > 30
    for heading in headings:
        pattern = ".*".join(re.escape(part) for part in heading.split("…"))
        assert any(re.search(pattern, message, re.DOTALL) for message in known), heading


def test_every_command_has_a_page_with_an_example() -> None:
    pages = command_pages()
    for name, command in typer.main.get_command(app).commands.items():
        if hasattr(command, "commands"):
            continue
        text = pages[f"commands/{name}.md"]
        assert f"adar-deploy {name}" in text, name
        assert all(
            f"`{option}`" in text for param in command.params for option in param.opts if "--" in option
        )


def test_the_image_contains_only_what_the_runtime_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {re.split(r"[>;]", line)[0] for line in project["project"]["dependencies"]}
    image, on_gpu = ((ROOT / name).read_text() for name in ("Dockerfile", "Dockerfile.gpu"))
    assert "-r /requirements/runtime.txt -r /requirements/onnxruntime.txt" in image
    for lock in ("runtime", "onnxruntime-gpu", "cuda"):
        assert f"-r /requirements/{lock}.txt" in on_gpu
    libraries = (ROOT / "requirements/cuda.txt").read_text()
    for library in ("nvidia-cublas", "nvidia-cuda-runtime", "nvidia-cudnn", "nvidia-cufft"):
        assert f"\n{library}" in libraries  # the CUDA provider links against them
    locked = set(re.findall(r"^(\S+)==", (ROOT / "requirements/runtime.txt").read_text(), re.MULTILINE))
    assert needed - {"onnxruntime", "onnxruntime-gpu"} <= locked
    assert not locked & {"torch", "onnx", "onnxruntime", "onnxruntime-gpu", "pytest", "hatchling"}
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        folder = package.split("/")[0]
        assert f"COPY {folder} {folder}" in image
        assert f"COPY {folder} {folder}" in on_gpu


def test_pictures_exist_and_load_no_other_file() -> None:
    for path in DOCUMENTS:
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text()):
            if picture.endswith(".png"):  # of benchmarks.paper
                assert len((path.parent / picture).read_bytes()) < 200_000
                continue
            text = (path.parent / picture).read_text()
            assert "prefers-color-scheme: dark" in text
            assert "href" not in text
            assert len(text) < 30_000
