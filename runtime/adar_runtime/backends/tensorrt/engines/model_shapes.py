"""The input shapes of each engine for a profile, and profiles that no GPU can run."""

from collections.abc import Sequence

from adar_runtime.backends.prepared_graph import encoder_rows
from adar_runtime.backends.tensor_limits import features_at_once, too_large
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile, Shapes
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import UsageError

ENCODER = "encoder"


def model_shapes(
    manifest: Manifest, name: str, profiles: Sequence[Profile], *, by_row: bool
) -> tuple[dict[str, Shapes], ...]:
    """For each profile, the shape ranges of the model's inputs; empty without a dynamic dimension."""
    ports = manifest.onnx_models[name].inputs if name in manifest.onnx_models else ()
    if name == ENCODER and by_row:  # nodes are encoded in blocks
        profiles = [profile.at_most(encoder_rows(manifest.features)) for profile in profiles]
    found = tuple(profile.shapes(ports) for profile in profiles)
    return found if any(found) else ()


def usable_profiles(
    manifest: Manifest, requested: Sequence[Profile] | None, *, by_row: bool
) -> tuple[tuple[Profile, ...], dict[str, str]]:
    """The requested profiles, or the default ones without those that are too large for this bundle.

    Returns:
        The profiles, and for each default profile that was left out, by name, the reason.

    Raises:
        UsageError: A requested profile, or every default profile, has a tensor that is too large.
    """
    candidates = tuple(PROFILES.values()) if requested is None else tuple(requested)
    problems = {one.name: _problem(manifest, one, by_row=by_row) for one in candidates}
    left_out = {name: why for name, why in problems.items() if why is not None}
    usable = tuple(one for one in candidates if one.name not in left_out)
    if left_out and (requested is not None or not usable):
        name, why = next(iter(left_out.items()))
        raise UsageError(
            f"the profile {name} is too large for this bundle: at its largest sizes, {why}; choose a smaller "
            "--profile, or build for the shapes of a graph with --for GRAPH"
        )
    return usable, left_out


def _problem(manifest: Manifest, profile: Profile, *, by_row: bool) -> str | None:
    """The tensor that GPU kernels could not index at the largest sizes of a profile."""
    shapes = profile.shapes(manifest.onnx_models["cell"].inputs)
    return too_large(
        manifest,
        nodes=profile.n.most,
        targets=manifest.targets or profile.c.most,
        pairs=profile.k.most,
        features=features_at_once(manifest, profile.n.most, by_row=by_row),
        structure={name: shape.most for name, shape in shapes.items()},
    )
