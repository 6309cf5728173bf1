"""GCN: the mean over the closed neighbourhood, weighted by degrees (Kipf and Welling, 2017)."""

from torch import nn
from torch_geometric.nn import GCNConv

from adar_train.baselines.base import ResidualBaseline


class GCN(ResidualBaseline):
    """Residual layers of PyG's GCNConv."""

    def convolution(self) -> nn.Module:
        return GCNConv(self.config.hidden, self.config.hidden)
