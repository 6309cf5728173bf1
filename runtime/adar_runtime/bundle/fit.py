"""Whether a graph fits a bundle."""

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import GraphError, warn
from adar_runtime.graph import EDGE, Graph
from adar_runtime.graph.feature_encoding import adds_reverse_edges, check_same_encoding
from adar_runtime.graph.statistics import Edges
from adar_runtime.in_context.start import check_can_start


def check_fits(graph: Graph, manifest: Manifest) -> None:
    """Raise an AdarError if the graph does not have the features, pairs or targets that the bundle takes."""
    if manifest.level == EDGE and graph.pairs is None:
        raise GraphError("the bundle scores pairs of nodes, and the graph has no pairs")
    if manifest.in_context:
        check_can_start(graph)
        return
    if graph.width != manifest.features:
        raise GraphError(f"the graph has {graph.width} features and the bundle takes {manifest.features}")
    check_same_encoding(manifest.feature_encoding, graph.feature_encoding)
    if adds_reverse_edges(manifest.feature_encoding, graph.feature_encoding) and Edges.of(graph).one_way:
        warn(
            "the model was trained with the reverse of every edge, and the graph has edges without their "
            "reverse: convert its table with --both-ways, or with data convert --bundle"
        )
    if manifest.targets is None and graph.target_features is None:
        raise GraphError("the bundle was trained on described targets, and the graph has no target_x")
    if graph.edge_weight is not None and not manifest.edge_weights:
        warn("the graph has edge weights, which this bundle does not use: it was trained without weights")
