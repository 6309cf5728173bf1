"""The variants of the model: for each name, the classes it is built from and its initialisation."""

from adar_runtime.errors import UsageError
from adar_train import initialisation, zero_shot
from adar_train.cell import (
    STANDARD,
    ZERO_SHOT,
    InputTransformation,
    LocalMessages,
    ModelConfig,
    Nonlinear,
    Variant,
    Velocity,
)

VARIANTS: dict[str, Variant] = {
    STANDARD: Variant(
        input=InputTransformation,
        nonlinear=Nonlinear,
        velocity=Velocity,
        local=LocalMessages,
        initialise=initialisation.initialise,
    ),
    ZERO_SHOT: Variant(
        input=zero_shot.ZeroShotInput,
        nonlinear=zero_shot.ZeroShotNonlinear,
        velocity=zero_shot.ZeroShotVelocity,
        local=zero_shot.ZeroShotLocalMessages,
        initialise=zero_shot.initialise,
        learned_targets=False,
        scaled_scores=True,
    ),
}
"""The values of `ModelConfig.variant`. A new variant is one entry here, and per new class one emitter in
`adar_export.emitters` and one plain form in `adar_export.plain_cell`."""


def variant_of(config: ModelConfig) -> Variant:
    """Return the variant of a model, or raise a UsageError if this model cannot be built."""
    variant = VARIANTS.get(config.variant)
    if variant is None:
        raise UsageError(f"there is no model variant {config.variant!r}: choose {', '.join(VARIANTS)}")
    if config.targets is not None and not variant.learned_targets:
        raise UsageError(
            f"the {config.variant} variant needs described targets, not learned ones: set targets=None and "
            "give the graph target_features, or choose the standard variant"
        )
    return variant
