"""Alignments: scalars that measure, without labels, how well nodes match targets. Stop rules read them."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import normalize

MEAN_INNER_PRODUCT = "mean-inner-product"
COSINE_MARGIN = "cosine-margin"


def mean_inner_product(nodes: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
    """Compute the paper's alignment: the mean inner product of all nodes with all targets.

    It equals the inner product of the two means. `shares` are the weights of nodes in a mean (`_mean`).
    """
    return (_mean(nodes, shares) * targets.mean(dim=-2)).sum(dim=-1)


def cosine_margin(nodes: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
    """Compute the mean over nodes of the largest cosine with a target minus the mean cosine.

    Targets are measured from their mean, so a shift of all targets changes nothing, as in softmax.
    """
    centred = targets - targets.mean(dim=-2, keepdim=True)
    cosines = normalize(nodes, dim=-1) @ normalize(centred, dim=-1).mT  # [n, c]
    margins = cosines.amax(dim=-1, keepdim=True) - cosines.mean(dim=-1, keepdim=True)
    return _mean(margins, shares).squeeze(-1)


def _mean(nodes: Tensor, shares: Tensor | None) -> Tensor:
    """The mean over nodes; in a batch [b, n, d], weighted with shares [b, n, 1], which are 0 for padding."""
    return nodes.mean(dim=-2) if shares is None else (nodes * shares).sum(dim=-2)


ALIGNMENTS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    MEAN_INNER_PRODUCT: mean_inner_product,
    COSINE_MARGIN: cosine_margin,
}
"""The alignments by their names in a manifest."""
