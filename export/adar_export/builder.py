"""A thin hand for writing ONNX graphs: values are names, operators are method calls."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
IR_VERSION = 8  # the one that came with opset 17; later opsets need no more of it


class GraphBuilder:
    """Collects inputs, weights, operators and outputs of one graph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, NDArray[Any]] = {}
        self._nodes: list[onnx.NodeProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: str = "float32") -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str], dtype: str = "float32") -> None:
        """Let a value leave the graph under a name of its own."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))

    def weight(self, name: str, array: NDArray[Any]) -> str:
        """A constant; the same name may be asked for again if it means the same."""
        if name in self._weights and not np.array_equal(self._weights[name], array):
            raise ValueError(f"two weights of one graph are called {name}")
        self._weights[name] = np.asarray(array, order="C")
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add an operator and return the name of its first output."""
        value = f"{kind.lower()}_{len(self._nodes)}"
        values = [value, *(f"{value}_{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, inputs, values, name=value, **attributes))
        return value

    def build(self, opset: int, metadata: dict[str, str]) -> onnx.ModelProto:
        """The finished model, checked."""
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="adar-deploy"
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model
