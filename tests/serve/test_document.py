"""The commands of docs/serving.md work, and its table of limits is that of the program."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.bundle.reading import pack_bundle
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
    (request,) = re.findall(r"^```json\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    Path("nodes.json").write_text(request)
    pack_bundle(Path("bundle"), Path("newer.adar"))
    printed: list[str] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    with running(["bundle"], Settings(port=0, grpc_port=None, model_control=True, drain_seconds=0)) as found:
        for language, text in blocks:
            if language == "python":
                exec(compile(text, DOCUMENT.name, "exec"), {})
                continue
            for line in text.splitlines():
                if line.startswith(("pip ", "adar-deploy serve", "adar-deploy export")):
                    continue  # tests/cli/test_docs.py checks the options
                words = shlex.split(line.replace(ADDRESS, found.addresses["http"]))
                if words[0] == "adar-deploy":
                    words = [sys.executable, "-m", "adar_deploy", *words[1:]]
                done = subprocess.run(
                    words, capture_output=True, text=True, check=False, timeout=60, env=environment
                )
                assert done.returncode == 0, (line, done.stderr)
                printed.append(done.stdout)
    _, model, answer, _, packed, described, events, stored, graphs, by_name, _, nodes, deleted, *others = (
        printed
    )
    assert json.loads(model)["name"] == "bundle"
    assert json.loads(answer) == json.loads(packed)
    assert json.loads(described)["openapi"] == "3.1.0"
    assert events.rstrip().splitlines()[-2] == "event: answer"
    assert json.loads(stored) in json.loads(graphs)["graphs"]
    assert json.loads(by_name)["parameters"]["max_steps"] == 50
    assert json.loads(nodes)["outputs"][0]["shape"] == [1]
    assert deleted == ""
    assert json.loads(others[0])[0]["state"] == "READY"
    assert json.loads(others[4])["model_stats"][0]["inference_count"] == 4


def test_the_table_of_limits_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| `--(limit-[\w-]+)` \| (\d+)", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: int(value) for name, value in rows} == {
        one.option: one.default for one in settings_of(Limits)
    }
