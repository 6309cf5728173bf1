"""An exponential moving average (EMA) of the weights, which is validated and kept instead of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of a model's trained weights over the epochs.

    `decay` is the share of the average that an epoch keeps. In the first epochs the share is smaller, so that
    the initial weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, epoch: int) -> None:
        """Add the weights after an epoch, counted from 0."""
        share = 1 - min(self._decay, (1 + epoch) / (10 + epoch))
        for name, value in self.values.items():
            value.lerp_(self._weights[name], share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights; afterwards it has its own weights again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Continue from the averages of a checkpoint."""
        for name, value in self.values.items():
            value.copy_(values[name])

    def _swap(self) -> None:
        for name, weight in self._weights.items():
            weight.data, self.values[name] = self.values[name], weight.data
