"""Who may import whom: the arrows of the architecture, each held by a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph

HEAVY = (
    "torch",
    "torch_geometric",
    "onnx",
    "onnxscript",
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "sklearn",
    "scipy",
    "matplotlib",
    "pyarrow",
    "networkx",
    "sentence_transformers",
    "typer",
    "adar_train",
    "adar_export",
)


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a new interpreter after running `code`."""
    script = (
        f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("adar_runtime", {*HEAVY, "adar_deploy"}),
        ("adar_deploy", {*HEAVY, "onnxruntime", "numpy", "rich"}),
        ("adar_train", {"adar_export", "adar_deploy", "typer", "onnx", "torch_geometric"}),
        ("adar_export", {"adar_deploy", "typer", "torch_geometric"}),
        ("adar_serve.server", {*HEAVY, "adar_deploy"}),
        ("adar_deploy.cli", {*HEAVY, "onnxruntime", "numpy"} - {"typer"}),
    ],
)
def test_imports_go_one_way(package: str, forbidden: set[str]) -> None:
    assert not loaded_after(f"import {package}") & forbidden


def after_command(*arguments: object) -> set[str]:
    """Modules that a command loads."""
    words = ["adar-deploy", *map(str, arguments)]
    return loaded_after(
        f"from adar_deploy.cli import main\nsys.argv = {words!r}\ntry: main()\nexcept SystemExit: pass"
    )


def test_help_loads_nothing_that_takes_time() -> None:
    for words in (["--help"], ["run", "--help"], ["serve", "--help"], ["--version"]):
        assert not after_command(*words) & {*HEAVY, "onnxruntime", "numpy"} - {"typer"}


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_running_a_graph_loads_what_it_needs_and_no_more(
    suffix: str, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / f"board{suffix}", board)
    run = ["run", tmp_path / f"board{suffix}", "--bundle", bundle_folder, "--max-steps", 2]
    loaded = after_command(*run)
    assert {"numpy", "onnxruntime"} <= loaded
    assert not loaded & (set(HEAVY) - {"typer"})
    if suffix == ".npz":
        assert after_command(*run, "--plot", tmp_path / "curve.svg") & set(HEAVY) == {"typer", "matplotlib"}


def test_a_pt_file_is_run_where_pytorch_is_not_installed(
    bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    """The predictions are those of the same graph in an .npz file."""
    for name in ("a.npz", "b.pt"):
        write_graph(tmp_path / name, board)
        words = [
            "adar-deploy",
            "run",
            name,
            "--bundle",
            str(bundle_folder),
            "--max-steps",
            "2",
            "-o",
            f"{name}.csv",
        ]
        code = "import sys\nsys.modules |= dict.fromkeys(('torch', 'torch_geometric'))\n"
        code += f"from adar_deploy.cli import main\nsys.argv = {words!r}\nmain()"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "a.npz.csv").read_bytes() == (tmp_path / "b.pt.csv").read_bytes()


@pytest.mark.parametrize(("command", "extra"), [("train", "train"), ("export", "export")])
def test_a_missing_extra_is_named(command: str, extra: str, tmp_path: Path) -> None:
    """An interpreter that cannot find torch, as in an install without extras."""
    code = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from adar_deploy.cli import main\n"
        f"sys.argv = ['adar-deploy', '{command}']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"error: adar-deploy {command} needs more than is installed: pip install 'adar-deploy[{extra}]'"
    ]
