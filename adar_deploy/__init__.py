"""Train AdaR, export it and predict, from Python or with the command `adar-deploy`.

The names below are imported on first use: `import adar_deploy` loads neither PyTorch nor numpy.

Examples:
    >>> import adar_deploy as adar
    >>> model = adar.train(data)  # doctest: +SKIP
    >>> model.export("bundle", opset=17)  # doctest: +SKIP
    >>> adar.load("bundle").predict(other).to_pandas()  # doctest: +SKIP
    >>> adar.pretrained().predict(graph)  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adar_deploy.python_api import pretrained, train
    from adar_deploy.trained_model import TrainedModel
    from adar_runtime import AdarError, Bundle, Graph, Result, load, read_graph, write_graph
    from adar_runtime.graph.in_memory import as_graph

__all__ = [
    "AdarError",
    "Bundle",
    "Graph",
    "Result",
    "TrainedModel",
    "as_graph",
    "load",
    "pretrained",
    "read_graph",
    "train",
    "write_graph",
]

_MODULES = {
    "TrainedModel": "adar_deploy.trained_model",
    "as_graph": "adar_runtime.graph.in_memory",
    "pretrained": "adar_deploy.python_api",
    "train": "adar_deploy.python_api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES.get(name, "adar_runtime")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
