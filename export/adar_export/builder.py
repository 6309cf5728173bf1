"""A thin hand for writing ONNX graphs: values are names, operators are method calls, types are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
}
IR_VERSION = 8  # the one that came with opset 17; later opsets need no more of it
AXES_ARE_INPUTS = 18  # the opset from which every Reduce operator takes its axes as ReduceSum always has


class OnnxBuilder:
    """Collects inputs, weights, operators and outputs of one graph.

    `real` is the type of every number that is not said to be of another.
    """

    def __init__(self, name: str, opset: int, real: str = "float32") -> None:
        self.name = name
        self.opset = opset
        self.real = real
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, NDArray[Any]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._types: dict[str, str] = {}
        self._casts: dict[tuple[str, str], str] = {}

    def input(self, name: str, shape: Sequence[int | str], type: str | None = None) -> str:
        self._types[name] = type or self.real
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[self._types[name]], shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str]) -> None:
        """Let a value leave the graph under a name of its own."""
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[self._types[value]], shape))
        if value in self._weights:
            self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
            return
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if one == value else one for one in names]

    def weight(self, name: str, array: NDArray[Any], type: str | None = None) -> str:
        """A constant; the same name may be asked for again if it means the same."""
        array = np.asarray(array)
        kept = type or (self.real if array.dtype.kind == "f" else array.dtype.name)
        array = np.asarray(array, helper.tensor_dtype_to_np_dtype(TYPES[kept]), order="C")
        if name in self._weights and not np.array_equal(self._weights[name], array):
            raise ValueError(f"two weights of one graph are called {name}")
        self._weights[name], self._types[name] = array, kept
        return name

    def op(
        self, kind: str, *inputs: str, outputs: int = 1, type: str | None = None, **attributes: Any
    ) -> str:
        """Add an operator and return the name of its first output, which is of its first input's type."""
        value = f"{kind.lower()}_{len(self._nodes)}"
        values = [value, *(f"{value}_{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, inputs, values, name=value, **attributes))
        self._types[value] = type or self._types[inputs[0]]
        return value

    def cast(self, value: str, type: str) -> str:
        """The same value in another type, cast once however often it is asked for; or as it is."""
        if self._types[value] == type:
            return value
        if (value, type) not in self._casts:
            self._casts[value, type] = self.op("Cast", value, to=TYPES[type], type=type)
        return self._casts[value, type]

    def reduce(self, kind: str, value: str, axis: int, *, keepdims: bool = False) -> str:
        """Reduce along one axis, told of it in the way of this opset."""
        if kind == "ReduceSum" or self.opset >= AXES_ARE_INPUTS:
            return self.op(kind, value, self.weight(f"axis_{axis}", np.array([axis])), keepdims=int(keepdims))
        return self.op(kind, value, axes=[axis], keepdims=int(keepdims))

    def build(self, metadata: dict[str, str]) -> onnx.ModelProto:
        """The finished model, checked."""
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="adar-deploy"
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model
