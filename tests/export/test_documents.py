"""docs/bundle.md and its schema agree with the code."""

import inspect
import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest

from adar_export import export_bundle
from adar_export.precision import PRECISIONS
from adar_export.validate import TOLERANCES
from adar_runtime import load
from adar_runtime.bundle.manifest import (
    AGGREGATIONS,
    LARGEST_CHANGE,
    LEAST_ORDER,
    LEAST_SAME,
    LEVELS,
    SCHEMAS,
)
from adar_runtime.bundle.signature import expected
from adar_runtime.evaluation.calibration import calibrate
from adar_runtime.evaluation.curves import Curve
from adar_runtime.graph.smoothing import MAX_ROUNDS
from adar_runtime.loop.stopping import RULES
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from adar_train.alignments import ALIGNMENTS
from tests.bundles import edit
from tests.helpers import awake, random_graph

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA_FILE = json.loads((DOCS / "manifest.schema.json").read_text())
TEXT = (DOCS / "bundle.md").read_text()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA_FILE)


def manifest_of(bundle: Path) -> dict:
    return json.loads((bundle / "manifest.json").read_text())


def test_the_schema_is_valid_and_complete() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA_FILE)
    properties = SCHEMA_FILE["properties"]
    assert properties["schema"]["enum"] == [*SCHEMAS]
    assert properties["smoothing"]["maximum"] == MAX_ROUNDS
    assert properties["precision"]["enum"] == [*PRECISIONS]
    assert properties["aggregation"]["enum"] == [*AGGREGATIONS]
    assert properties["level"]["enum"] == [*LEVELS]
    assert set(properties["alignment"]["enum"]) == set(ALIGNMENTS)


def test_the_schema_has_the_stop_rules_of_the_runtime() -> None:
    described = {
        one["properties"]["rule"]["const"]: one for one in SCHEMA_FILE["properties"]["exit"]["oneOf"]
    }
    assert {name: set(one["properties"]) - {"rule"} for name, one in described.items()} == {
        name: set(inspect.signature(rule).parameters) for name, rule in RULES.items()
    }


@pytest.mark.parametrize(("rule", "distance"), [("time", 1), ("peak", 0)])
def test_calibrated_exits_are_valid_and_documented(bundle_folder: Path, rule: str, distance: int) -> None:
    """The alignment of two graphs peaks at their best step, or one step later."""
    steps, best = range(4), (1, 1)
    curves = [
        Curve(
            3,
            [s / 3 for s in steps],
            [-abs(s - peak - distance) for s in steps],
            [{"val": float(s == peak)} for s in steps],
        )
        for peak in best
    ]
    found = calibrate([curves]).rule
    assert found["rule"] == rule
    VALIDATOR.validate(manifest_of(bundle_folder) | {"exit": found})
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| `exit` |")]
    written = row.split(";")[0]
    assert f"`{rule}` with {' and '.join(f'`{name}`' for name in found if name != 'rule')}" in written


def test_real_manifests_are_valid(bundle_folder: Path, described_bundle: Path) -> None:
    for folder in (bundle_folder, described_bundle):
        VALIDATOR.validate(manifest_of(folder))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"level": "edge"}, {"precision": "int8"}),
        ({"level": "graph", "alignment": "mean-inner-product"}, {"opset": 20}),
        ({"unit_step": True, "step_info": False}, {"precision": "bf16"}),
        ({"smoothing": 2}, {}),
    ],
)
def test_manifests_of_other_kinds_are_valid(settings: dict, options: dict, tmp_path: Path) -> None:
    graph = random_graph(20, 40, level=settings.get("level", "node"))
    model = awake(ModelConfig(graph.width, None, 8, 2, **settings))
    if settings.get("unit_step"):
        model.cell.velocity.out.weight.data.mul_(0.01)
    run = tmp_path / "run"
    save_run(run, Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    export_bundle(load_run(run), tmp_path / "bundle", steps=(1, 2), **options)
    VALIDATOR.validate(manifest_of(tmp_path / "bundle"))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(colour="red"),
        lambda m: m.pop("parity"),
        lambda m: m.update(schema=1),
        lambda m: m.update(hidden=0),
        lambda m: m.update(exit={"rule": "never"}),
        lambda m: m.update(exit={"rule": "time"}),
        lambda m: m.update(exit={"rule": "time", "t": 0.5, "patience": 3}),
        lambda m: m.update(exit={"rule": "peak", "fallback": 0}),
        lambda m: m.update(precision="fp8"),
        lambda m: m["graphs"].update(tail={}),
        lambda m: m["graphs"]["cell"].update(file="../cell.onnx"),
        lambda m: m["graphs"]["cell"].update(sha256="00"),
        lambda m: m["graphs"]["cell"]["inputs"][0].update(shape=[None]),
        lambda m: m["parity"]["checks"][0].update(relative=-1),
        lambda m: m["training"].pop("weights"),
        lambda m: m.update(checksum=None),
    ],
)
def test_invalid_manifests_are_refused(bundle_folder: Path, change) -> None:
    manifest = manifest_of(bundle_folder)
    change(manifest)
    assert not VALIDATOR.is_valid(manifest)


def test_the_document_computes_the_checksum(
    described_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    bundle = shutil.copytree(described_bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    edit(bundle, lambda m: m.update(opset=18), seal=False)
    with pytest.raises(AssertionError):
        exec(code, {})


def test_a_manifest_without_checksum_is_valid(bundle_folder: Path) -> None:
    manifest = manifest_of(bundle_folder)
    del manifest["checksum"]
    VALIDATOR.validate(manifest)


def test_every_field_and_port_is_explained(bundle_folder: Path, described_bundle: Path) -> None:
    for field in SCHEMA_FILE["properties"]:
        assert f"`{field}`" in TEXT
    for bundle in (bundle_folder, described_bundle):
        for ports in expected(load(bundle, "onnxruntime-cpu").manifest).values():
            for port in (*ports.inputs, *ports.outputs):
                if not re.fullmatch(r"(previous_|next_).*|.*_velocity|(leaf|join)_\d", port.name):
                    assert f"`{port.name}`" in TEXT, port.name


def test_figures_agree_with_the_code() -> None:
    for name, tolerance in TOLERANCES.items():
        (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {tolerance} |")
    assert f"where the order is below {LEAST_ORDER}" in TEXT
    limits = f"at most {100 * LARGEST_CHANGE:g} % of the total movement, and {100 * LEAST_SAME:g} % of the"
    assert limits in " ".join(TEXT.split())
