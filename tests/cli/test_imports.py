"""Who may import whom: the arrows of the architecture, each held by a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "torch",
    "torch_geometric",
    "onnx",
    "onnxscript",
    "tensorrt",
    "sklearn",
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
        ("adar_train", {"adar_export", "adar_deploy", "typer", "onnx"}),
        ("adar_export", {"adar_deploy", "typer"}),
        ("adar_deploy.cli", {*HEAVY, "onnxruntime", "numpy"} - {"typer"}),
    ],
)
def test_imports_go_one_way(package: str, forbidden: set[str]) -> None:
    assert not loaded_after(f"import {package}") & forbidden


def test_running_an_npz_never_loads_torch(bundle_folder: Path, board, tmp_path: Path) -> None:
    from adar_runtime import write_graph

    write_graph(tmp_path / "board.npz", board)
    arguments = [
        "adar-deploy",
        "run",
        str(tmp_path / "board.npz"),
        "--bundle",
        str(bundle_folder),
        "--max-steps",
        "2",
    ]
    code = f"from adar_deploy.cli import main\nsys.argv = {arguments!r}\ntry: main()\nexcept SystemExit: pass"
    assert not loaded_after(code) & (set(HEAVY) - {"typer"})


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
