"""Several commands at once, and signals in the middle of one."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from adar_export import export_bundle
from adar_runtime import load, read_graph
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BundleError
from adar_train import load_run
from tests.faults.conftest import Server, left_behind

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
EXPORT = ("export", "run", "--out", "bundle", "--opset")
PROGRESS = "compare with PyTorch"
TIMES = 5


@pytest.mark.torture
def test_exports_to_one_folder_and_a_reader(home: Path) -> None:
    """Each export leaves a whole bundle. A reader meanwhile gets a whole bundle or a clear error."""
    run, out, graph = load_run(home / "run"), home / "bundle", read_graph(home / "g.npz")
    done = False

    def export(opset: int) -> None:
        for _ in range(TIMES):
            export_bundle(run, out, opset, steps=(1, 2))

    def read() -> list[str]:
        outcomes = []
        while not done:
            time.sleep(0.05)
            try:
                bundle = load(out, "onnxruntime-cpu", threads=1)
                outcomes.append("answered" if bundle.run(graph, 2).steps else "not")
            except BundleError as error:  # replaced between reading its manifest and its models
                outcomes.append("changed" if "changed after it was exported" in str(error) else str(error))
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read)
        list(pool.map(export, (17, 18, 19)))
        done = True
        outcomes = reader.result()
    assert "answered" in outcomes
    assert all(word in ("answered", "changed") or "bytes" in word for word in outcomes), set(outcomes)
    assert read_manifest(out).opset in (17, 18, 19)
    assert load(out, "onnxruntime-cpu").run(graph, 2).steps > 0
    assert left_behind(home) == []


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="fast"), pytest.param(True, marks=pytest.mark.torture)]
)
def test_an_interrupted_export_leaves_the_old_bundle(every: bool, commands: Server, home: Path) -> None:
    """By the signals that a shell or a scheduler sends, just before each change on the disk that it makes."""
    whole = commands.run(home, *EXPORT, 18)
    assert whole["code"] == 0, whole["stderr"]
    writes = range(1, whole["writes"] + 1) if every else [whole["writes"] // 2]
    for write, (number, code) in product(writes, SIGNALS if every else SIGNALS[-1:]):
        before = read_manifest(home / "bundle").opset
        opset = 17 if before == 18 else 18
        got = commands.run(home, *EXPORT, opset, write=write, number=number)
        assert got["code"] in (code, 0), got["stderr"]
        lines = got["stderr"].splitlines()
        said = [line for line in lines if not line.startswith(PROGRESS)]  # after ten seconds
        assert said == (["error: interrupted"] if got["code"] else [])
        assert load(home / "bundle", "onnxruntime-cpu").manifest.opset in (before, opset)
        assert left_behind(home) == []
