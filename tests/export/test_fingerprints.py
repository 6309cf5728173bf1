"""`known_models.json` lists what the exporter writes: no more and no less."""

import json

import pytest
import torch

from adar_export.fingerprints import (
    SIZES,
    build,
    configurations,
    entries,
    fused_topologies,
    plain_topologies,
    symbolic,
    topology_of,
)
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import newest
from adar_export.plain_cell import export_plain_cell
from adar_export.precision import PRECISIONS
from adar_runtime.bundle.known_models import FILE, known_models
from adar_runtime.bundle.manifest import ONNX_MODELS
from adar_runtime.bundle.topology import Weight
from adar_train import AdaR, ModelConfig

STALE = "known_models.json is not what the exporter writes: run make fingerprints"


def listed(*, plain: bool) -> dict:
    return {
        model: [entry for entry in known if plain or not entry["title"].startswith("plain")]
        for model, known in json.loads(FILE.read_text()).items()
    }


def test_the_file_lists_every_model_of_the_fused_export() -> None:
    assert entries(plain=False) == listed(plain=False), STALE


def test_the_newest_opset_has_the_same_topologies() -> None:
    known = known_models()
    for model, title, topology in fused_topologies(newest()):
        assert " ".join(map(symbolic, topology.weights)) in known[model][topology.fingerprint], title


def version_of_plain() -> str:
    return next(e["title"] for e in listed(plain=True)["cell"] if e["title"].startswith("plain"))


needs_listed_pytorch = pytest.mark.skipif(
    f"PyTorch {torch.__version__.split('+')[0]}," not in version_of_plain(),
    reason="known_models.json has the plain exports of another version of PyTorch",
)


@needs_listed_pytorch
def test_the_file_lists_a_plain_export() -> None:
    config = next(config for config, _ in configurations())
    topology = topology_of(export_plain_cell(build(config), newest()))
    assert " ".join(map(symbolic, topology.weights)) in known_models()["cell"][topology.fingerprint], STALE


@needs_listed_pytorch
@pytest.mark.torture
def test_the_file_lists_every_plain_export() -> None:
    assert entries() == listed(plain=True), STALE
    for title, topology in plain_topologies(newest()):
        assert topology.fingerprint in known_models()["cell"], title


def test_a_zero_shot_cell_has_two_topologies() -> None:
    """All layers that start at zero are left out, or none: not one topology for each set of layers."""
    model = AdaR(ModelConfig(5, None, 8, 3, variant="zero-shot")).eval().requires_grad_(False)
    found = {topology_of(build_onnx_models(model, 17)["cell"]).fingerprint}
    with torch.no_grad():
        model.cell.velocity.out.weight.fill_(0.5)
        found.add(topology_of(build_onnx_models(model, 17)["cell"]).fingerprint)
        model.cell.message.linear.bias.fill_(0.5)
        found.add(topology_of(build_onnx_models(model, 17)["cell"]).fingerprint)
    assert len(found) == 2
    assert found <= set(known_models()["cell"])


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 3, 3), (7, 3, 64, 32)])
def test_sizes_do_not_matter(sizes: tuple[int, int, int, int]) -> None:
    features, targets, hidden, proxies = sizes
    model = AdaR(ModelConfig(features, targets, hidden, proxies)).eval()
    for precision in PRECISIONS.values():
        for name, proto in build_onnx_models(model, 17, precision).items():
            assert topology_of(proto).fingerprint in known_models()[name]


def test_a_side_is_a_sum_of_dimensions() -> None:
    d, p = SIZES["d"], SIZES["p"]
    assert symbolic(Weight((2 * d + p, 3 * d))) == "2d+p,3d"
    assert symbolic(Weight((1,), (-1,))) == "1=-1"
    assert symbolic(Weight(())) == ""


def test_the_file_has_every_kind_of_model() -> None:
    assert set(known_models()) == set(ONNX_MODELS)
