"""Alignments: scalars that measure, without labels, how well nodes match targets. Stop rules read them."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import normalize

MEAN_INNER_PRODUCT = "mean-inner-product"
COSINE_MARGIN = "cosine-margin"


def mean_inner_product(nodes: Tensor, targets: Tensor) -> Tensor:
    """Compute the paper's alignment: the mean inner product of all nodes with all targets.

    It equals the inner product of the two means.
    """
    return nodes.mean(dim=0) @ targets.mean(dim=0)


def cosine_margin(nodes: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean over nodes of the largest cosine with a target minus the mean cosine.

    Targets are measured from their mean, so a shift of all targets changes nothing, as in softmax.
    """
    cosines = normalize(nodes, dim=1) @ normalize(targets - targets.mean(dim=0), dim=1).T  # [n, c]
    return (cosines.amax(dim=1) - cosines.mean(dim=1)).mean(dim=0)


ALIGNMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    MEAN_INNER_PRODUCT: mean_inner_product,
    COSINE_MARGIN: cosine_margin,
}
"""The alignments by their names in a manifest."""
