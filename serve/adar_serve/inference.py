"""One inference without a network: check a request, choose its options, and build its answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adar_runtime import Result
from adar_runtime.errors import short
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.solvers import DEFAULT_SOLVER
from adar_serve.limits import Limits
from adar_serve.messages import Answer, InferRequest
from adar_serve.models import Model
from adar_serve.refusals import RefusedError

OPTIONS = ("max_steps", "exit", "solver")
"""The parameters of a request that every server takes."""


def run_options(request: InferRequest, limits: Limits, max_steps: int) -> dict[str, Any]:
    """Budget, stop rule and solver, as arguments of `Bundle.loop`."""
    budget = request.parameters.get("max_steps", max_steps)
    if not is_count(budget, 1) or budget > limits.steps:
        raise RefusedError(400, f"max_steps is {short(budget)}: choose 1 to {limits.steps:,}")
    stop, solver = (name_in(request, name) for name in ("exit", "solver"))
    return {"budget": budget, "stop": stop, "solver": DEFAULT_SOLVER if solver is None else solver}


def name_in(request: InferRequest, parameter: str) -> str | None:
    """A parameter that is a name; None if the request does not have it."""
    value = request.parameters.get(parameter)
    if value is not None and not isinstance(value, str):
        raise RefusedError(400, f"{parameter} is {short(value)}, not a name")
    return value


def check_request(model: Model, request: InferRequest, limits: Limits, parameters: Sequence[str]) -> None:
    """Refuse unknown inputs, outputs and parameters, and sizes beyond the limits."""
    model.check_inputs(request.inputs, limits)
    for name in request.parameters:
        if name not in parameters:
            raise RefusedError(
                400, f"unknown parameter {short(name)!r}: the parameters are {', '.join(parameters)}"
            )
    known = [port.name for port in model.outputs]
    for name in request.outputs:
        if name not in known:
            raise RefusedError(
                400, f"the model has no output {short(name)!r}: its outputs are {', '.join(known)}"
            )


def answer(model: Model, request: InferRequest, result: Result) -> Answer:
    """The outputs that the request asks for, for all nodes or for some."""
    if "nodes" in request.inputs:
        nodes = request.inputs["nodes"]
        if nodes.dtype.kind not in "iu":
            raise RefusedError(400, "nodes holds numbers that are not integers: send INT64")
        if len(nodes) > len(result.scores):  # an answer is no larger than that for all nodes
            raise RefusedError(
                400, f"nodes has {len(nodes):,} row numbers, but x has {len(result.scores):,}: send each once"
            )
        if nodes.size and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(result.scores):
            raise RefusedError(400, f"nodes must be row numbers of x, 0 to {len(result.scores) - 1}")
        result = result.select(nodes)
    chosen = model.arrays(result, request.outputs)
    facts = {"stop_reason": result.stop_reason.name.lower(), "cell_calls": result.cell_calls}
    facts |= {"best_time": result.best_time, "max_steps": result.budget}
    return Answer(model.name, model.version, request.id, chosen, facts)


def whole(request: InferRequest) -> InferRequest:
    """The request without `nodes`, where they do not choose rows of the answer."""
    inputs = {name: array for name, array in request.inputs.items() if name != "nodes"}
    return replace(request, inputs=inputs)
