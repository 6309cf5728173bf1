"""Scalars that say, without a label, how well nodes and targets have come together: what an exit watches."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import normalize

MEAN_INNER_PRODUCT = "mean-inner-product"
COSINE_MARGIN = "cosine-margin"


def mean_inner_product(nodes: Tensor, targets: Tensor) -> Tensor:
    """The paper's: of all nodes with all targets, which is that of their means."""
    return nodes.mean(dim=0) @ targets.mean(dim=0)


def cosine_margin(nodes: Tensor, targets: Tensor) -> Tensor:
    """How far a node's nearest target is ahead of the mean one, as a cosine from the targets' mean.

    A shift that all targets share, which softmax does not see, does not move it.
    """
    cosines = normalize(nodes, dim=1) @ normalize(targets - targets.mean(dim=0), dim=1).T  # [n, c]
    return (cosines.amax(dim=1) - cosines.mean(dim=1)).mean(dim=0)


ALIGNMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    MEAN_INNER_PRODUCT: mean_inner_product,
    COSINE_MARGIN: cosine_margin,
}
"""By the name that a bundle has for the one it was exported with."""
