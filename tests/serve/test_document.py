"""The commands of docs/serving.md work, and its table of limits is that of the program."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.loop.registry import settings_of
from adar_serve import Limits, Settings
from tests.serve.servers import running

DOCUMENT = Path(__file__).parents[2] / "docs/serving.md"
ADDRESS = "http://127.0.0.1:8080"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_commands_run_in_order(
    bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundle_folder, "bundle")
    write_graph("graph.npz", board)
    printed: list[str] = []
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    with running(["bundle"], Settings(port=0, grpc_port=None, drain_seconds=0)) as found:
        for language, text in blocks:
            if language == "python":
                exec(compile(text, DOCUMENT.name, "exec"), {})
                continue
            for line in text.splitlines():
                if line.startswith(("pip ", "adar-deploy ")):  # tests/cli/test_docs.py checks the options
                    continue
                words = shlex.split(line.replace(ADDRESS, found.addresses["http"]))
                done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
                assert done.returncode == 0, (line, done.stderr)
                printed.append(done.stdout)
    _, model, answer, _, packed, described, events, stored, graphs, by_name, deleted = printed
    assert json.loads(model)["name"] == "bundle"
    assert json.loads(answer) == json.loads(packed)
    assert json.loads(described)["openapi"] == "3.1.0"
    assert events.rstrip().splitlines()[-2] == "event: answer"
    assert json.loads(stored) in json.loads(graphs)["graphs"]
    assert json.loads(by_name)["parameters"]["max_steps"] == 50
    assert deleted == ""


def test_the_table_of_limits_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| `--(limit-\w+)` \| (\d+)", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in rows} == {
        one.option: one.default for one in settings_of(Limits)
    }
