"""A builder of ONNX models: values are names, operators are method calls, types are known."""

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
IR_VERSION = 8  # the version of opset 17; later opsets work with it too
AXES_ARE_INPUTS = 18  # from this opset on, all Reduce operators take their axes as an input


class OnnxBuilder:
    """Collects the inputs, weights, operators and outputs of one ONNX model.

    `real` is the default type of floating-point values.
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
        """Declare an input and return its name."""
        self._types[name] = type or self.real
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[self._types[name]], shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str]) -> None:
        """Declare a value as an output, under this name."""
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[self._types[value]], shape))
        if value in self._weights:
            self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
            return
        for node in self._nodes:
            for names in (node.input, node.output):
                if value in names:
                    names[:] = [name if one == value else one for one in names]

    def weight(self, name: str, array: NDArray[Any], type: str | None = None) -> str:
        """Add a constant and return its name. The same name can be added again with the same values."""
        array = np.asarray(array)
        kept = type or (self.real if array.dtype.kind == "f" else array.dtype.name)
        array = np.asarray(array, helper.tensor_dtype_to_np_dtype(TYPES[kept]), order="C")
        if name in self._weights and not np.array_equal(self._weights[name], array):
            raise ValueError(f"two different weights of one model have the name {name}")
        self._weights[name], self._types[name] = array, kept
        return name

    def op(
        self, kind: str, *inputs: str, outputs: int = 1, type: str | None = None, **attributes: Any
    ) -> str:
        """Add an operator and return its first output, which is of the type `type` or the first input's."""
        value = f"{kind.lower()}_{len(self._nodes)}"
        values = [value, *(f"{value}_{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, inputs, values, name=value, **attributes))
        self._types[value] = type or self._types[inputs[0]]
        return value

    def type_of(self, value: str) -> str:
        """The element type of a value."""
        return self._types[value]

    def cast(self, value: str, type: str) -> str:
        """Cast a value to a type, with at most one operator per value and type."""
        if self._types[value] == type:
            return value
        if (value, type) not in self._casts:
            self._casts[value, type] = self.op("Cast", value, to=TYPES[type], type=type)
        return self._casts[value, type]

    def reduce(self, kind: str, value: str, axis: int, *, keepdims: bool = False) -> str:
        """Reduce along one axis, which is an input or an attribute, depending on the opset."""
        if kind == "ReduceSum" or self.opset >= AXES_ARE_INPUTS:
            return self.op(kind, value, self.weight(f"axis_{axis}", np.array([axis])), keepdims=int(keepdims))
        return self.op(kind, value, axes=[axis], keepdims=int(keepdims))

    def build(self, metadata: dict[str, str]) -> onnx.ModelProto:
        """Build the model and check it."""
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="adar-deploy"
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model
