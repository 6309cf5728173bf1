"""A bundle may compute nothing but AdaR: any other topology is refused before ONNX Runtime sees the model."""

import copy as copies
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import adar_runtime
from adar_export import export_bundle
from adar_runtime import Graph
from adar_runtime.bundle import known_models
from adar_runtime.bundle.topology import NoTopologyError, read_topology
from adar_runtime.errors import BundleError
from adar_train import load_run
from tests.bundles import edit, replace_model

LOWEST = np.array(-(2**63), np.int64)


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def cell(bundle_folder: Path) -> onnx.ModelProto:
    return onnx.load(bundle_folder / "cell.onnx")


def add_to_alignment(model: onnx.ModelProto, value: str) -> None:
    """Let an output depend on a value, so that no optimizer removes the value."""
    last = next(node for node in model.graph.node if node.output[0] == "alignment")
    last.output[0] = "real_alignment"
    model.graph.node.append(helper.make_node("Add", ["real_alignment", value], ["alignment"]))


def folded_products(model: onnx.ModelProto) -> None:
    """Products of 6000 x 6000 constants, made from two numbers: loading takes more than 12 s."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([6000, 6000]), "sides"))
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1e-3])
    nodes = [helper.make_node("ConstantOfShape", ["sides"], ["m0"], value=one)]
    nodes += [helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(8)]
    nodes.append(helper.make_node("ReduceSum", ["m8"], ["total"], keepdims=0))
    for index, node in enumerate(nodes):
        model.graph.node.insert(index, node)
    add_to_alignment(model, "total")


def four_gigabytes(model: onnx.ModelProto) -> None:
    """A constant of 4 GB, made from two numbers."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**15, 2**15]), "sides"))
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sides"], ["zeros"], value=one))
    model.graph.node.insert(1, helper.make_node("ReduceSum", ["zeros"], ["total"], keepdims=0))
    add_to_alignment(model, "total")


def overflowing(operator: str) -> Callable[[onnx.ModelProto], None]:
    """INT64_MIN / -1, which ends the process with SIGFPE."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(LOWEST, "lowest"))
        model.graph.initializer.append(numpy_helper.from_array(np.array(-1), "minus_one"))
        model.graph.node.insert(0, helper.make_node(operator, ["lowest", "minus_one"], ["quotient"]))
        model.graph.node.insert(1, helper.make_node("Cast", ["quotient"], ["total"], to=TensorProto.FLOAT))
        add_to_alignment(model, "total")

    return change


HOSTILE = {
    "constant folding": folded_products,
    "4 GB": four_gigabytes,
    "SIGFPE in Div": overflowing("Div"),
    "SIGFPE in Mod": overflowing("Mod"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_cell_is_refused_quickly(copy: Path, cell: onnx.ModelProto, name: str) -> None:
    HOSTILE[name](cell)
    replace_model(copy, "cell", cell.SerializeToString())
    started = time.perf_counter()
    with pytest.raises(BundleError, match=r"cell\.onnx is not a model that this version .*exports") as error:
        adar_runtime.load(copy)
    assert time.perf_counter() - started < 2
    assert "\n" not in str(error.value)


def first(model: onnx.ModelProto, operator: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == operator)


def weight_of(model: onnx.ModelProto, *sides: int) -> onnx.TensorProto:
    return next(weight for weight in model.graph.initializer if tuple(weight.dims) == sides)


def another_operator(model: onnx.ModelProto) -> None:
    first(model, "Sqrt").op_type = "Exp"


def another_axis(model: onnx.ModelProto) -> None:
    next(a for a in first(model, "Concat").attribute if a.name == "axis").i = 0


def another_constant(model: onnx.ModelProto) -> None:
    axis = next(weight for weight in model.graph.initializer if weight.name == "axis_1")
    axis.CopyFrom(numpy_helper.from_array(np.array([0]), "axis_1"))


def another_input(model: onnx.ModelProto) -> None:
    first(model, "Softmax").input[0] = "nodes"


def one_weight_for_two(model: onnx.ModelProto) -> None:
    a, b = [node for node in model.graph.node if node.op_type == "LayerNormalization"][:2]
    b.input[1] = a.input[1]


def another_type(model: onnx.ModelProto) -> None:
    weight = next(w for w in model.graph.initializer if w.name == "no_message")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), "no_message"))


def a_wide_weight(model: onnx.ModelProto) -> None:
    """Weights that agree with each other, but whose inner side is 4000 instead of d."""
    linear = weight_of(model, 16, 16)
    linear.CopyFrom(numpy_helper.from_array(np.zeros((16, 4000), np.float32), linear.name))


def an_unused_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["nodes"], ["unused"]))


def an_operator_twice(model: onnx.ModelProto) -> None:
    again = copies.deepcopy(model.graph.node[0])
    again.output[0] = "again"
    model.graph.node.insert(1, again)


def an_unused_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(10, np.float32), "unused"))


def missing_numbers(model: onnx.ModelProto) -> None:
    weight_of(model, 16, 16).ClearField("raw_data")


def numbers_as_text(model: onnx.ModelProto) -> None:
    weight = weight_of(model, 16, 16)
    weight.float_data.extend(numpy_helper.to_array(weight).ravel().tolist())
    weight.ClearField("raw_data")


def shapes_of_values(model: onnx.ModelProto) -> None:
    name = model.graph.node[0].output[0]
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [10**9, 10**9]))


def another_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version += 1


CHANGES = [
    another_operator,
    another_axis,
    another_constant,
    another_input,
    one_weight_for_two,
    another_type,
    a_wide_weight,
    an_unused_operator,
    an_operator_twice,
    an_unused_weight,
    missing_numbers,
    numbers_as_text,
    shapes_of_values,
    another_opset,
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_beside_the_weights_is_refused(copy: Path, cell: onnx.ModelProto, change) -> None:
    change(cell)
    replace_model(copy, "cell", cell.SerializeToString())
    with pytest.raises(BundleError, match=r"not a model that this version"):
        adar_runtime.load(copy)


def test_an_opset_in_which_operators_have_other_meanings(copy: Path) -> None:
    for name in ("encoder", "cell", "head"):
        model = onnx.load(copy / f"{name}.onnx")
        model.opset_import[0].version = 12  # Softmax flattens its input
        replace_model(copy, name, model.SerializeToString())
    edit(copy, lambda manifest: manifest.update(opset=12))
    with pytest.raises(BundleError, match="opset 12"):
        adar_runtime.load(copy)


def test_a_fixed_size_of_an_input_is_refused_before_loading(
    copy: Path, cell: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime would compute operators on sizes when it loads the model."""
    for port in cell.graph.input:
        if port.name == "nodes":
            port.type.tensor_type.shape.dim[0].dim_value = 10**6
    replace_model(copy, "cell", cell.SerializeToString())
    monkeypatch.setattr("adar_runtime.bundle.bundle.open_backend", None)
    with pytest.raises(BundleError, match=r"the actual inputs of cell\.onnx"):
        adar_runtime.load(copy)


def test_a_size_beside_the_name_of_a_size_is_refused_before_loading(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protobuf takes the last of the two: here the size, 10^6."""
    model = onnx.load(copy / "head.onnx")
    unknown, size = b"\xfa\xff\x0f\x02??", b"\x08\xc0\x84\xbd\x80\x00"  # of six bytes each
    model.graph.input[0].type.tensor_type.shape.dim[0].MergeFromString(unknown)  # kept, after the name
    written = model.SerializeToString().replace(unknown, size)
    assert onnx.ModelProto.FromString(written).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 10**6
    replace_model(copy, "head", written)
    monkeypatch.setattr("adar_runtime.bundle.bundle.open_backend", None)
    with pytest.raises(BundleError, match="with two sizes"):
        adar_runtime.load(copy)


def test_dimensions_of_the_manifest_are_those_of_the_weights(copy: Path) -> None:
    def widen(manifest: dict) -> None:
        manifest["hidden"] = 10**6
        for model in manifest["graphs"].values():
            for port in [*model["inputs"], *model["outputs"]]:
                port["shape"] = [10**6 if side == 16 else side for side in port["shape"]]

    for name in ("encoder", "cell", "head"):
        model = onnx.load(copy / f"{name}.onnx")
        for port in [*model.graph.input, *model.graph.output]:
            for side in port.type.tensor_type.shape.dim:
                if side.dim_value == 16:
                    side.dim_value = 10**6
        replace_model(copy, name, model.SerializeToString())
    edit(copy, widen)
    with pytest.raises(BundleError, match="do not have the dimensions of the manifest"):
        adar_runtime.load(copy)


def rename(model: onnx.ModelProto) -> None:
    """Give every weight, operator and intermediate value another name."""
    kept = {port.name for port in [*model.graph.input, *model.graph.output]} | {""}
    model.graph.name, model.producer_name = "another", "another"
    for index, node in enumerate(model.graph.node):
        node.name = f"another {index}"
        for names in (node.input, node.output):
            names[:] = [name if name in kept else f"another {name}" for name in names]
    for weight in model.graph.initializer:
        weight.name = f"another {weight.name}"


@pytest.mark.parametrize("name", ["encoder", "cell", "head"])
def test_names_do_not_matter(copy: Path, board: Graph, name: str) -> None:
    expected = adar_runtime.load(copy).run(board, 3).scores
    model = onnx.load(copy / f"{name}.onnx")
    before = read_topology(model.SerializeToString())
    rename(model)
    assert read_topology(model.SerializeToString()) == before
    replace_model(copy, name, model.SerializeToString())
    assert np.array_equal(adar_runtime.load(copy).run(board, 3).scores, expected)


def field(key: int, content: bytes) -> bytes:
    return bytes([key]) + content


@pytest.mark.parametrize(
    "node",
    [
        field(0x22, b"\x03Neg") + field(0x22, b"\x03Exp"),  # two operators: a reader takes the last
        field(0x20, b"\x03"),  # the operator as a number, which readers ignore
        field(0x22, b"\x03Neg") + field(0x2A, b"\x0a" + b"\x0a\x02to\x18\x01\x18\x02\xa0\x01\x02"[:10]),
    ],
)
def test_a_field_that_readers_understand_differently_has_no_topology(node: bytes) -> None:
    graph = b"\x0a" + bytes([len(node)]) + node
    opset = b"\x42\x02\x10\x11"
    with pytest.raises((NoTopologyError, ValueError)):
        read_topology(opset + b"\x3a" + bytes([len(graph)]) + graph)


def test_the_list_of_operators_is_checked_beside_the_fingerprint(
    copy: Path, cell: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a fingerprint was added by mistake."""
    overflowing("Div")(cell)
    content = cell.SerializeToString()
    topology = read_topology(content)
    sizes = [
        ",".join(map(str, weight.sides))
        + ("" if weight.values is None else "=" + ",".join(map(str, weight.values)))
        for weight in topology.weights
    ]
    known = {**known_models.known_models()}
    known["cell"] = {topology.fingerprint: [" ".join(sizes)]}
    monkeypatch.setattr(known_models, "known_models", lambda: known)
    replace_model(copy, "cell", content)
    with pytest.raises(BundleError, match="the operator Div of int64"):
        adar_runtime.load(copy)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_other_precisions_and_opsets_are_known(run_folder: Path, tmp_path: Path, precision: str) -> None:
    manifest = export_bundle(load_run(run_folder), tmp_path / "b", opset=21, precision=precision, steps=(3,))
    models = {name: (tmp_path / "b" / file.file).read_bytes() for name, file in manifest.onnx_models.items()}
    known_models.check(manifest, models)
