"""`make check` rejects calls that can run code from a file, also in the folder that reads graph files."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CALLS = {
    "import pickle": "TID251",
    "from pickle import loads": "TID251",
    "import torch\ntorch.load('f')": "TID251",
    "import _pickle": "TID251",
    "import torch\ntorch.jit.load('f')": "TID251",
    "import numpy as np\nnp.load('f', allow_pickle=True)": "TID251",
    "import zipfile\nzipfile.ZipFile('f')": "TID251",
    "import onnx\nonnx.load('f')": "TID251",
    "eval('1')": "S307",
    "exec('1')": "S102",
    "import os\nos.system('ls')": "TID251",
    "import subprocess\nsubprocess.run('ls', shell=True)": "S602",
}


def violated_rules(code: str, file: str) -> str:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--stdin-filename",
        file,
        "--output-format",
        "concise",
        "-",
    ]
    return subprocess.run(command, input=code, text=True, capture_output=True, cwd=ROOT, check=False).stdout


@pytest.mark.parametrize("code", CALLS)
@pytest.mark.parametrize(
    "file",
    [
        "adar_deploy/x.py",
        "train/adar_train/x.py",
        "runtime/adar_runtime/x.py",
        "runtime/adar_runtime/graph/formats/x.py",
        "serve/adar_serve/x.py",
    ],
)
def test_a_dangerous_call_is_banned(code: str, file: str) -> None:
    assert f" {CALLS[code]} " in violated_rules(code, file)
