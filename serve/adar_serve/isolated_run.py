"""A child process of `serve --isolate`: loads one bundle, and runs the graphs that it receives."""

import os
import resource
from typing import Any

import numpy as np

from adar_runtime import AdarError, Bundle, Graph, load
from adar_runtime.backends.isolated.messages import Arrays, BadMessageError, Channel
from adar_runtime.backends.isolated.worker import address_space, set_soft_limit
from adar_runtime.errors import BundleError
from adar_runtime.graph import EDGE, NODE
from adar_serve.isolation import described
from adar_serve.refusals import files_changed, refusal


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    channel = Channel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what native code prints must not reach the pipe
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bundle: Bundle | None = None
    while True:
        try:
            request, arrays = channel.receive()
        except BadMessageError:
            os._exit(0)
        try:
            bundle = bundle or _load(request["load"])
            header, outputs = _run(bundle, request, arrays, channel)
        except MemoryError:
            header, outputs = {"status": 413, "refused": "the graph needs more memory than is allowed"}, {}
        except AdarError as error:
            refused = refusal(error)
            header, outputs = {"status": refused.status, "refused": refused.message}, {}
        channel.send(header, outputs)


def _load(settings: dict[str, Any]) -> Bundle:
    try:
        bundle = load(settings["path"], **settings["options"])
    except BundleError as error:
        raise files_changed() from error
    if bundle.manifest.checksum != settings["checksum"]:  # the server still has the old one
        raise files_changed()
    base = address_space()
    if base is not None:
        set_soft_limit(resource.RLIMIT_AS, base + settings["memory"])
    return bundle


def _run(
    bundle: Bundle, request: dict[str, Any], arrays: Arrays, channel: Channel
) -> tuple[dict[str, Any], Arrays]:
    level = bundle.manifest.level
    inputs: dict[str, Any] = {**arrays}
    graph = Graph(**inputs, level=NODE if level == EDGE else level)
    loop = bundle.loop(graph, request["budget"], request["stop"], request["solver"])
    for step in loop:
        if request["steps"]:
            channel.send({"step": [step.index, float(step.time), float(step.alignment)]}, {})
    result = loop.result()
    return {"result": described(result)}, {"scores": np.asarray(result.scores, np.float32)}
