"""Write the bundles of the self-test into the runtime. `make selftest-bundle` runs it.

The weights come from numpy's random numbers, and the manifests have no measurements and versions: the content
is the same on every machine.
"""

import lzma
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tarfile import TarFile, TarInfo
from tempfile import TemporaryDirectory

import numpy as np
import torch

from adar_export.onnx_files import write_onnx_model
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import OLDEST
from adar_export.precision import precision_of
from adar_export.writer import EXIT
from adar_runtime.bundle.manifest import FILE_NAME, TABLES, Manifest
from adar_runtime.graph import LEVELS
from adar_runtime.selftest.packaged import FILE
from adar_train.cell import ModelConfig
from adar_train.model import AdaR

FEATURES, TARGETS, HIDDEN, PROXIES = 6, 3, 16, 4
SEED = 3  # the alignment of this model passes a peak on the graphs of the self-test
WANTED = (*((level, "fp32") for level in LEVELS), ("node", "fp16"), ("node", "bf16"))
MOVED = 0.3  # standard deviation of the last layer of each velocity, which training starts at zero


def model_of(level: str) -> AdaR:
    """A small model with random weights that do not depend on the version of PyTorch."""
    model = AdaR(ModelConfig(FEATURES, TARGETS, HIDDEN, PROXIES, level=level)).eval()
    random = np.random.default_rng(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = MOVED if name.endswith("out.weight") else weight.shape[-1] ** -0.5
            numbers = random.normal(0.0, spread, tuple(weight.shape))
            if "norm" in name:
                numbers = np.ones_like(numbers) if name.endswith("weight") else np.zeros_like(numbers)
            weight.copy_(torch.from_numpy(numbers.astype(np.float32)))
    return model


def files() -> Iterator[tuple[str, bytes]]:
    """The files of all bundles: path in the archive, and content."""
    for level, precision in WANTED:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            protos = build_onnx_models(model_of(level), OLDEST, precision_of(precision))
            manifest = Manifest(
                features=FEATURES,
                hidden=HIDDEN,
                proxies=PROXIES,
                targets=TARGETS,
                opset=OLDEST,
                precision=precision,
                aggregation=TABLES,
                level=level,
                regression=False,
                unit_step=False,
                alignment=model_of(level).config.alignment,
                exit=EXIT,
                onnx_models={name: write_onnx_model(folder, name, proto) for name, proto in protos.items()},
            )
            (folder / FILE_NAME).write_text(manifest.to_json())
            for path in sorted(folder.iterdir()):
                yield f"{level}-{precision}/{path.name}", path.read_bytes()


def archive() -> bytes:
    """All bundles as one file."""
    content = BytesIO()
    with TarFile(fileobj=content, mode="w") as target:
        for name, data in files():
            entry = TarInfo(name)
            entry.size = len(data)
            target.addfile(entry, BytesIO(data))
    return lzma.compress(content.getvalue(), preset=9)


def main() -> None:
    """Write the file, and print its size."""
    content = archive()
    FILE.write_bytes(content)
    sys.stdout.write(f"{FILE.name}: {len(WANTED)} bundles, {len(content):,} bytes\n")


if __name__ == "__main__":
    main()
