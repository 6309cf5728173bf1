"""The examples of the documents do what they say."""

import re
import shutil
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph

ROOT = Path(__file__).parents[1]


def examples(name: str) -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    )


@pytest.mark.parametrize("name", ["README.md", "docs/runtime.md", "docs/tensorrt.md"])
def test_examples_run(
    name: str, bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bundle_folder, tmp_path / "bundle")
    write_graph(tmp_path / "graph.npz", board)
    (tmp_path / "graphs").mkdir()
    for other in "ab":
        write_graph(tmp_path / "graphs" / f"{other}.npz", board)
    monkeypatch.chdir(tmp_path)
    code = examples(name)
    assert code
    exec(compile(code, name, "exec"), {})
