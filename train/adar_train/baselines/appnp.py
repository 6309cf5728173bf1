"""APPNP: predict, then propagate by personalised PageRank (Gasteiger et al., 2019)."""

from torch import Tensor, nn
from torch_geometric import nn as pyg

from adar_train.baselines.base import OnePass
from adar_train.cell import ModelConfig

ALPHA = 0.1  # chance to restart at the node itself: APPNP's own choice


class APPNP(OnePass):
    """One hidden layer for each node by itself, then `layers` rounds of PyG's APPNP.

    The head is linear, so to propagate Z and then score it is to propagate the predictions.
    """

    def __init__(self, config: ModelConfig, layers: int = 10) -> None:
        super().__init__(config, layers)
        self.predict = nn.Linear(config.hidden, config.hidden)
        self.rounds = pyg.APPNP(K=layers, alpha=ALPHA)

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        return self.rounds(self.predict(self.dropout(nodes.relu())), edge_index)
