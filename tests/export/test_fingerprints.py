"""`known_models.json` lists what the exporter writes: no more and no less."""

import json

import pytest
import torch

from adar_export.fingerprints import SIZES, entries, fused_topologies, symbolic, topology_of
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import newest
from adar_export.precision import PRECISIONS
from adar_runtime.bundle.known_models import FILE, known_models
from adar_runtime.bundle.manifest import BATCHED_CELL, ONNX_MODELS, PHASES
from adar_runtime.bundle.topology import Weight
from adar_train import AdaR, ModelConfig

STALE = "known_models.json is not what the exporter writes: run make fingerprints"


def test_the_file_lists_every_model_of_the_exporter() -> None:
    assert entries() == json.loads(FILE.read_text()), STALE


def test_the_newest_opset_has_the_same_topologies() -> None:
    known = known_models()
    for model, title, topology in fused_topologies(newest()):
        assert " ".join(map(symbolic, topology.weights)) in known[model][topology.fingerprint], title


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


def test_a_side_is_a_dimension_or_a_number() -> None:
    assert symbolic(Weight((SIZES["d"], SIZES["p"]))) == "d,p"
    assert symbolic(Weight((1,), (-1,))) == "1=-1"
    assert symbolic(Weight(())) == ""


def test_the_file_has_every_kind_of_model() -> None:
    assert set(known_models()) == {*ONNX_MODELS, BATCHED_CELL, *PHASES}
