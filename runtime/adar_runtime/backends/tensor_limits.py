"""The largest tensors of a run. GPU kernels number the elements of a tensor with 32 bits."""

from collections.abc import Mapping, Sequence
from math import prod

from adar_runtime.backends.prepared_graph import PreparedGraph, encoder_rows
from adar_runtime.bundle.manifest import EDGES, Manifest
from adar_runtime.errors import ProfileError
from adar_runtime.graph import EDGE
from adar_runtime.graph.neighbour_tables import fixed_widths

MOST_ELEMENTS = 2**31 - 1


def check(
    prepared: PreparedGraph, manifest: Manifest, structure: Mapping[str, Sequence[int]], pairs: int
) -> None:
    """Refuse a graph with a tensor that kernels of a GPU cannot index.

    Args:
        prepared: The graph.
        manifest: The bundle's manifest.
        structure: Shapes of the cell's inputs that describe the edges.
        pairs: How many pairs of nodes are scored at once.

    Raises:
        ProfileError: A tensor has too many elements. The backend "auto" tries the next backend.
    """
    features = max(stop - start for start, stop in prepared.feature_blocks()) * prepared.graph.width
    problem = too_large(manifest, prepared.graph.nodes, prepared.targets, pairs, features, structure)
    if problem is not None:
        raise ProfileError(f"the graph is too large for one GPU: {problem}; use --backend onnxruntime-cpu")


def too_large(
    manifest: Manifest,
    nodes: int,
    targets: int,
    pairs: int,
    features: int,
    structure: Mapping[str, Sequence[int]],
) -> str | None:
    """The first tensor with 2³¹ elements or more, in words; None if there is none."""
    d, p = manifest.hidden, manifest.proxies
    sizes = {"features": features, "messages": nodes * (p + targets + d), "scores": nodes * targets}
    sent = max(d, targets) if manifest.in_context else d  # columns; a pretrained model also sends ψ(H, C)
    sizes |= {f"rows of {name}": prod(structure[name]) * sent for name in fixed_widths() if name in structure}
    if manifest.aggregation == EDGES:
        sizes["messages along edges"] = prod(structure["edge_source"]) * 3 * d
    if manifest.level == EDGE:
        sizes["rows of pairs"] = pairs * max(d, targets)
    for name, size in sizes.items():
        if size > MOST_ELEMENTS:
            return f"the tensor {name!r} would have {size:,} elements, and {MOST_ELEMENTS:,} are possible"
    return None


def features_at_once(manifest: Manifest, nodes: int, *, by_row: bool) -> int:
    """Elements of the encoder's input for a graph of this many nodes."""
    return min(nodes, encoder_rows(manifest.features) if by_row else nodes) * manifest.features
