"""Profiles: parsing, and that they cover the neighbour tables of every graph within their sizes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

from adar_runtime import Graph
from adar_runtime.backends.prepared_graph import LAYOUTS
from adar_runtime.backends.tensorrt.engines import profiles
from adar_runtime.backends.tensorrt.engines.plan import build_engine
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile, Range
from adar_runtime.bundle.manifest import TABLES
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.bundle.signature import STRUCTURES
from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph.neighbour_tables import FIXED
from adar_runtime.graph.neighbours import Neighbours
from tests.helpers import random_graph
from tests.runtime.simulated_gpu import QUICK, TARGET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiny", "choose small, medium, large"),
        ("n=1:2:3,x=4", "unknown profile"),
        ("n=1:2:3,n=4", "each at most once"),
        ("m=1:2:3", "needs n"),
        ("n=3:2:1", "n=3:2:1 is not a range"),
        ("n=0:1:2", "is not a range"),
        ("n=1:2", "is not a range"),
        ("n=a", "is not a range"),
        (f"n={2**31}", "is not a range"),
    ],
)
def test_invalid_profiles_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Profile.parse(text)


def test_a_single_number_fixes_the_size() -> None:
    profile = Profile.parse("n=5:10:20,c=3")
    assert profile.c == Range(3, 3, 3)
    assert profile.m == Range(1, 80, 200)


def shapes_of(edges: np.ndarray, nodes: int) -> dict[str, tuple[int, ...]]:
    return {k: v.shape for k, v in LAYOUTS[TABLES](Neighbours.of(edges, nodes), FIXED).items()}


def assert_fits(profile: Profile, edges: np.ndarray, nodes: int) -> None:
    ranges = profile.shapes(STRUCTURES[TABLES])
    for name, shape in shapes_of(edges, nodes).items():
        least, likely, most = ranges[name]
        assert least <= likely <= most
        assert ranges[name].take(shape), (name, shape, ranges[name])


@pytest.mark.parametrize("text", ["n=1:1000:10000,m=1:5:10", "n=1,m=1", "n=2147483647"])
def test_missing_sizes_become_valid_ranges(text: str) -> None:
    profile = Profile.parse(text)
    for least, likely, most in (*profile.to_dict().values(), *profile._dimensions.values()):
        assert 1 <= least <= likely <= most


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 3000), st.floats(0.0, 4.0), st.integers(0, 9))
def test_tables_of_any_graph_fit_the_profile_of_its_sizes(n: int, m: int, skew: float, seed: int) -> None:
    """From equal degrees to a few hubs with nearly all edges."""
    random = np.random.default_rng(seed)
    popular = (random.random(m) ** (1 + skew) * n).astype(np.int64)
    edges = np.stack([random.integers(0, n, m), popular])
    assert_fits(Profile.of({"n": Range(1, n, n), "m": Range(1, m, m)}), edges, n)


def star(spokes: int) -> np.ndarray:
    """Edges from every node to node 0 and to the next node."""
    nodes = np.arange(spokes)
    return np.concatenate([np.stack([nodes, 0 * nodes]), np.stack([nodes, (nodes + 1) % spokes])], axis=1)


@pytest.mark.parametrize("hub", [30_000, 40_000, 99_999])
def test_a_hub_among_low_degrees_fits_the_profile_of_its_graph(hub: int) -> None:
    """Rows as narrow as the short lists give the fewest entries, but too many rows to join for the hub."""
    nodes, random = 100_000, np.random.default_rng(0)
    targets = np.repeat(np.arange(nodes), random.integers(1, 9, nodes))
    edges = np.stack([random.integers(0, nodes, len(targets)), targets])
    edges = np.concatenate([edges, np.stack([np.arange(hub), np.full(hub, 7)])], axis=1)
    graph = Graph(np.zeros((nodes, 1)), edges)
    assert_fits(Profile.around(graph), edges, nodes)


def test_a_node_with_more_neighbours_than_engines_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "LONGEST", 30)
    with pytest.raises(GraphError, match="a node has 40 neighbours, and TensorRT engines take up to 30"):
        Profile.around(Graph(np.zeros((40, 1)), star(40)))


def test_a_profile_for_a_graph_takes_similar_graphs_but_not_much_larger_ones() -> None:
    sizes = {"graph": (1000, 8000), "a little larger": (1200, 9600), "much larger": (2000, 16_000)}
    graphs = {name: random_graph(*size, seed=index) for index, (name, size) in enumerate(sizes.items())}
    ranges = Profile.around(graphs["graph"]).shapes(STRUCTURES[TABLES])

    def fits(graph: Graph) -> bool:
        shapes = shapes_of(graph.edge_index, graph.nodes)
        return all(ranges[name].take(shape) for name, shape in shapes.items())

    assert {name: fits(graph) for name, graph in graphs.items()} == {
        "graph": True,
        "a little larger": True,
        "much larger": False,
    }


def test_an_engine_for_the_tables_of_a_hub_is_built(bundle_folder: Path) -> None:
    spokes = 40_000
    edges = star(spokes)
    profile = Profile.of({"n": Range(1, spokes, spokes), "m": Range(1, edges.shape[1], edges.shape[1])})
    assert shapes_of(edges, spokes)["join_2"] == (1, 4096)
    for wide in (profile, PROFILES["medium"], PROFILES["large"]):
        assert_fits(wide, edges, spokes)
    manifest, onnx_models = read_bundle(bundle_folder)
    shapes = profile.shapes(manifest.onnx_models["cell"].inputs)
    assert build_engine("cell", onnx_models["cell"], TARGET, [shapes], QUICK).user_allocation
