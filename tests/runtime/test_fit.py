"""Whether a graph fits a bundle: what is said about a graph of tables."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from adar_runtime import Bundle, Graph
from adar_runtime.bundle.fit import check_fits
from adar_runtime.errors import AdarWarning
from adar_runtime.graph import EncodedColumn, FeatureEncoding

ONE_WAY = np.array([[0, 1], [1, 2]])


def of_table(width: int, edges: np.ndarray, *, both_ways: bool) -> Graph:
    columns = tuple(EncodedColumn(f"c{i}", "number") for i in range(width))
    encoding = FeatureEncoding(columns, both_ways=both_ways)
    return Graph(np.ones((3, width)), edges, feature_encoding=encoding)


@pytest.mark.parametrize("case", ["one way", "both directions", "added"])
def test_missing_reverse_edges_are_named(bundle: Bundle, case: str) -> None:
    """A model whose table got the reverse of every edge would read other neighbours without a word."""
    width = bundle.manifest.features
    encoding = of_table(width, ONE_WAY, both_ways=True).feature_encoding
    manifest = replace(bundle.manifest, feature_encoding=encoding)
    edges = np.concatenate([ONE_WAY, ONE_WAY[::-1]], axis=1) if case == "both directions" else ONE_WAY
    graph = of_table(width, edges, both_ways=case == "added")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if case != "one way":
            check_fits(graph, manifest)
            return
    with pytest.warns(AdarWarning, match="trained with the reverse of every edge"):
        check_fits(graph, manifest)
