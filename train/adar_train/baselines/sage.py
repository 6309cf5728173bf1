"""GraphSAGE: a node's own representation beside its neighbours' mean (Hamilton et al., 2017)."""

from torch import nn
from torch_geometric.nn import SAGEConv

from adar_train.baselines.base import ResidualBaseline


class SAGE(ResidualBaseline):
    """Residual layers of PyG's SAGEConv."""

    def convolution(self) -> nn.Module:
        return SAGEConv(self.config.hidden, self.config.hidden)
