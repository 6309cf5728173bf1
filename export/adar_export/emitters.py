"""The table of emitters: for each class of `adar_train`, the function that writes it as ONNX operators.

This table is the only place where the exporter distinguishes variants. A new variant adds one emitter for
each of its new classes. All emitters of one kind have one signature:

| kind | signature |
|---|---|
| InputTransformation | (builder, model, nodes, targets) → nodes, targets |
| Nonlinear | (ops, name, x) → NL(x) |
| Velocity | (ops, name, current, projected, related) → velocity |
| LocalMessages | (ops, left, values) → M Wᵀ, NL(M) Wᵀ |
| alignment scalar (a function) | (builder, nodes, targets) → scalar |

`ops` is a `CellOps`, `name` is the module's name in the cell, and all other values are names of ONNX values.
`related()` emits what relation and step add to the first layer of a velocity. A velocity that does not use
them does not call it.
"""

from collections.abc import Callable
from typing import Any

from adar_export import standard_emitters as standard
from adar_export import zero_shot_emitters as zero_shot
from adar_runtime.errors import ExportError
from adar_train import alignments
from adar_train.cell import InputTransformation, LocalMessages, Nonlinear, Velocity
from adar_train.zero_shot import ZeroShotInput, ZeroShotLocalMessages, ZeroShotNonlinear, ZeroShotVelocity

EMITTERS: dict[Callable[..., Any], Callable[..., Any]] = {
    InputTransformation: standard.input_transformation,
    Nonlinear: standard.nonlinear,
    Velocity: standard.velocity,
    LocalMessages: standard.local_messages,
    ZeroShotInput: zero_shot.input_transformation,
    ZeroShotNonlinear: zero_shot.nonlinear,
    ZeroShotVelocity: zero_shot.velocity,
    ZeroShotLocalMessages: zero_shot.local_messages,
    alignments.mean_inner_product: standard.mean_inner_product,
    alignments.cosine_margin: standard.cosine_margin,
}


def emitter_for(what: Callable[..., Any]) -> Callable[..., Any]:
    """Return the emitter of a module class or of an alignment function."""
    if what not in EMITTERS:
        raise ExportError(
            f"{what.__qualname__} cannot be exported: add its emitter to adar_export.emitters.EMITTERS"
        )
    return EMITTERS[what]
