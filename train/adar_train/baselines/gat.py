"""GAT: a mean over the closed neighbourhood whose weights are learned (Velickovic et al., 2018)."""

from math import gcd

from torch import nn
from torch_geometric.nn import GATConv

from adar_train.baselines.base import ResidualBaseline

HEADS = 8  # the paper's own choice; fewer where they do not divide the hidden columns


class GAT(ResidualBaseline):
    """Residual layers of PyG's GATConv, the heads side by side in the hidden columns."""

    def convolution(self) -> nn.Module:
        d, heads = self.config.hidden, gcd(self.config.hidden, HEADS)
        return GATConv(d, d // heads, heads=heads, dropout=self.config.dropout)
