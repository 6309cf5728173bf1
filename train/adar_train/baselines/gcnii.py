"""GCNII: deep GCN that mixes the input into every layer (Chen et al., 2020)."""

from torch import Tensor, nn
from torch_geometric.nn import GCN2Conv

from adar_train.baselines.base import OnePass
from adar_train.cell import ModelConfig

ALPHA, THETA = 0.1, 0.5  # share of the input in each layer, decay of the weights: GCNII's own choice


class GCNII(OnePass):
    """PyG's GCN2Conv, layer after layer."""

    def __init__(self, config: ModelConfig, layers: int = 8) -> None:
        super().__init__(config, layers)
        self.convolutions = nn.ModuleList(
            GCN2Conv(config.hidden, ALPHA, THETA, layer=number) for number in range(1, layers + 1)
        )

    def propagate(self, nodes: Tensor, edge_index: Tensor) -> Tensor:
        first = nodes = nodes.relu()
        for convolution in self.convolutions:
            nodes = convolution(self.dropout(nodes), first, edge_index).relu()
        return nodes
