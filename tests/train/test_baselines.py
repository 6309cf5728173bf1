"""Every baseline learns and takes any graph; GCN and N² equal a plain numpy version."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg

from adar_runtime import Graph
from adar_runtime.errors import UsageError
from adar_runtime.loop.schedule import times
from adar_train import GraphTensors, ModelConfig, State
from adar_train.baselines import BASELINES, Baseline, heterophily
from adar_train.baselines.edge_weights import BLOCK, FAConvolution, GATConvolution
from adar_train.baselines.heterophily import two_hops
from adar_train.baselines.propagation import GCN2Convolution, GCNConvolution, SAGEConvolution
from adar_train.losses import task_loss
from tests.helpers import random_graph
from tests.runtime.test_graph import sparse


def build(name: str, graph: Graph, *, described: bool = True, **options) -> Baseline:
    torch.manual_seed(0)
    targets = None if described else 3
    return BASELINES[name](ModelConfig(graph.width, targets, hidden=16, proxies=4), **options)


def run(model: Baseline, graph: Graph) -> list[State]:
    with torch.no_grad():
        return list(model.eval().trajectory(GraphTensors.of(graph), times(2)))


def communities(nodes: int = 60, classes: int = 3) -> Graph:
    """Links only inside classes; features are the description of the class plus strong noise."""
    random = np.random.default_rng(0)
    labels = np.arange(nodes) % classes
    pairs = random.integers(0, nodes, (2, 20 * nodes))
    described = random.normal(size=(classes, 8))
    return Graph(
        features=described[labels] + 2 * random.normal(size=(nodes, 8)),
        edge_index=pairs[:, labels[pairs[0]] == labels[pairs[1]]],
        labels=labels,
        target_features=described,
    )


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("described", [True, False])
def test_it_learns_from_the_task_loss(name: str, described: bool) -> None:
    graph = communities()
    tensors, chosen = GraphTensors.of(graph), torch.arange(0, 60, 2)
    model = build(name, graph, described=described)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    history = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = task_loss(model, list(model.trajectory(tensors, times(8)))[-1], tensors, chosen)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert history[-1] < 0.5 * history[0]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    predictions = model.scores(run(model, graph)[-1], tensors).argmax(dim=1)
    least = 0.6 if name in ("h2gcn", "gps") else 0.8  # these two keep the node's own noise apart
    assert (predictions == tensors.labels)[1::2].float().mean() > least  # nodes without training labels


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("edges", [0, 3, 40])
def test_any_graph_and_either_kind_of_features(name: str, edges: int) -> None:
    """No edges, isolated nodes, loops, repeated edges; sparse and dense features give equal results."""
    graph = random_graph(11, edges)
    model = build(name, graph)
    states = run(model, graph)
    assert states[0].nodes.shape == states[-1].nodes.shape == (11, 16)
    assert states[-1].targets.shape == (3, 16)
    assert states[-1].target_proxies.shape == (0, 16)
    assert model.scores(states[-1], GraphTensors.of(graph)).isfinite().all()
    again = run(model, replace(graph, features=sparse(graph.features)))
    assert torch.allclose(again[-1].nodes, states[-1].nodes, atol=1e-5)


@pytest.mark.parametrize("name", BASELINES)
def test_messages_flow_from_source_to_target(name: str) -> None:
    """A change at node 0 reaches 1 and 2 along 0 → 1 → 2, but not node 3, which only sends to 0."""
    graph = replace(random_graph(4, 0), edge_index=np.array([[0, 1, 3], [1, 2, 0]]))
    changed = replace(graph, features=graph.features + np.array([[1], [0], [0], [0]]))
    model = build(name, graph, layers=2)
    if name == "n2":  # its pseudo nodes reach all nodes: turn them off to test the edges alone
        torch.nn.init.zeros_(model.layer.refined.linear.weight)
    if name == "gps":  # the same for its attention
        for convolution in model.convolutions:
            torch.nn.init.zeros_(convolution.attn.attn_out.weight)
    moved = (run(model, changed)[-1].nodes - run(model, graph)[-1].nodes).abs().amax(dim=1)
    assert (moved[:3] > 1e-4).all()
    assert moved[3] < 1e-6


@pytest.mark.parametrize("name", BASELINES)
def test_described_targets_can_be_any_number(name: str) -> None:
    graph = random_graph(9, 20, classes=5)
    model = build(name, graph)
    state = run(model, graph)[-1]
    assert model.scores(state, GraphTensors.of(graph)).shape == (9, 5)
    assert torch.allclose(state.targets, model.input(torch.from_numpy(graph.target_features)))


@pytest.mark.parametrize("name", BASELINES)
def test_the_depth_is_a_setting_of_the_baseline(name: str) -> None:
    graph = random_graph(9, 20)
    with pytest.raises(UsageError, match="layers"):
        build(name, graph, layers=0)
    shallow, deep = (run(build(name, graph, layers=layers), graph)[-1].nodes for layers in (1, 3))
    assert not torch.allclose(shallow, deep)


@pytest.mark.parametrize("edges", [0, 3, 40])
def test_fast_convolutions_equal_pygs_layers(edges: int) -> None:
    """Also with isolated nodes, loops and edges of one direction."""
    graph = GraphTensors.of(random_graph(11, edges))
    x, first = torch.randn(11, 8), torch.randn(11, 8)
    gcn, sage, gcn2 = GCNConvolution(8, 8), SAGEConvolution(8, 8), GCN2Convolution(8, 0.1, 0.5, layer=2)
    torch.nn.init.normal_(gcn.bias)
    edge_index = graph.edge_index
    pairs = [
        (gcn(x, graph), pyg.GCNConv.forward(gcn, x, edge_index)),
        (sage(x, graph), pyg.SAGEConv.forward(sage, x, edge_index)),
        (gcn2(x, first, graph), pyg.GCN2Conv.forward(gcn2, x, first, edge_index)),
    ]
    appnp = BASELINES["appnp"](ModelConfig(6, 3, hidden=8), layers=3).eval()
    slow = pyg.APPNP(K=3, alpha=0.1)(appnp.predict(x.relu()), edge_index)
    for ours, theirs in [*pairs, (appnp.propagate(x, graph), slow)]:
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("edges", [0, 3, 40, 6000])
def test_learned_weights_of_edges_equal_pygs_layers(edges: int) -> None:
    """Results and gradients, with isolated nodes, loops and more edges than one block has."""
    torch.manual_seed(0)
    graph = GraphTensors.of(random_graph(90 if edges > 1000 else 11, edges))
    assert edges < 1000 or graph.edge_index.shape[1] > BLOCK
    x, first = torch.randn(2, len(graph.share), 8)
    gat, fagcn = GATConvolution(8, 4, heads=2).eval(), FAConvolution(8, 0.3).eval()
    torch.nn.init.normal_(gat.bias)
    results = {
        gat: (lambda x: gat(x, graph), lambda x: pyg.GATConv.forward(gat, x, graph.edge_index)),
        fagcn: (
            lambda x: fagcn(x, first, graph),
            lambda x: pyg.FAConv.forward(fagcn, x, first, graph.edge_index),
        ),
    }
    for layer, both in results.items():
        found = []
        for forward in both:
            inputs = [x.clone().requires_grad_(), *layer.parameters()]
            y = forward(inputs[0])
            found.append([y, *torch.autograd.grad((y * first).square().sum(), inputs)])
        for ours, theirs in zip(*found, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gprgnn_starts_as_appnp() -> None:
    graph = GraphTensors.of(random_graph(11, 40))
    appnp, gprgnn = (
        BASELINES[name](ModelConfig(6, 3, hidden=8), layers=3).eval() for name in ("appnp", "gprgnn")
    )
    gprgnn.predict.load_state_dict(appnp.predict.state_dict())
    x = torch.randn(11, 8)
    assert torch.allclose(gprgnn.propagate(x, graph), appnp.propagate(x, graph), atol=1e-5)


def test_h2gcn_separates_the_node_its_neighbours_and_theirs() -> None:
    """On a path 0 – 1 – 2 – 3: distances one and two, normalised by the number of such nodes."""
    path = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    graph = replace(random_graph(4, 0), edge_index=path)
    one, two = (keys.tolist() for keys in two_hops(GraphTensors.of(graph)))
    assert one == [1, 4, 6, 9, 11, 14]
    assert two == [2, 7, 8, 13]
    model = build("h2gcn", graph, layers=1).eval()
    x, w = model.encode(GraphTensors.of(graph)).nodes.relu(), model.predict
    near = torch.stack([x[1] / 2**0.5, x[0] / 2**0.5 + x[2] / 2, x[1] / 2 + x[3] / 2**0.5, x[2] / 2**0.5])
    far = torch.stack([x[2], x[3], x[0], x[1]])
    assert torch.allclose(run(model, graph)[-1].nodes, w(torch.cat([x, near, far], dim=1)), atol=1e-5)


def test_h2gcn_refuses_a_graph_with_too_many_two_hop_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heterophily, "MOST_PATHS", 10)
    with pytest.raises(UsageError, match="paths of two edges"):
        run(build("h2gcn", graph := random_graph(11, 40)), graph)


def test_a_large_gps_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(UsageError, match="8192"):
        BASELINES["gps"](ModelConfig(6, 3, hidden=1_000_000))


def test_gat_finds_heads_for_any_width() -> None:
    assert BASELINES["gat"](ModelConfig(6, 3, hidden=12)).convolutions[0].heads == 4


def plain(model: Baseline) -> dict[str, np.ndarray]:
    return {name: weight.double().numpy() for name, weight in model.state_dict().items()}


def norm(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def adjacency(graph: Graph) -> np.ndarray:
    """A_ij = 1 where j sends to i."""
    dense = np.zeros((graph.nodes, graph.nodes))
    dense[graph.edge_index[1], graph.edge_index[0]] = 1
    return dense


@pytest.mark.parametrize("edges", [0, 40])
def test_gcn_is_kipfs_propagation_rule(edges: int) -> None:
    graph = random_graph(11, edges)
    model = build("gcn", graph, layers=2)
    first, last = (state.nodes.double().numpy() for state in run(model, graph))
    w = plain(model)
    closed = adjacency(graph)
    np.fill_diagonal(closed, 1)
    degree = closed.sum(axis=1)
    closed = closed / np.sqrt(np.outer(degree, degree))  # D^-1/2 (A + I) D^-1/2
    x = graph.features @ w["input.weight"].T + w["input.bias"]
    assert np.abs(x - first).max() < 1e-5
    for layer in range(2):
        name = f"convolutions.{layer}"
        x = x + np.maximum(
            closed @ norm(w, f"norms.{layer}", x) @ w[f"{name}.lin.weight"].T + w[f"{name}.bias"], 0
        )
    assert np.abs(norm(w, "last_norm", x) - last).max() < 1e-5


def test_n2_is_the_appendix_without_steps_and_relations() -> None:
    graph = random_graph(11, 40)
    model = build("n2", graph, layers=3)
    w = plain(model)

    def psi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        powers = np.exp(a @ b.T / np.sqrt(16))
        return powers / powers.sum(axis=1, keepdims=True)

    def leaky(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, 0.01 * x)

    def nl(name: str, x: np.ndarray) -> np.ndarray:
        return leaky(x @ w[f"layer.{name}.linear.weight"].T + w[f"layer.{name}.linear.bias"])

    def update(name: str, x: np.ndarray) -> np.ndarray:
        x = x @ w[f"layer.{name}.representation.weight"].T + w[f"layer.{name}.representation.bias"]
        return leaky(norm(w, f"layer.{name}.rest.0", x)) @ w[f"layer.{name}.rest.3.weight"].T

    states = run(model, graph)
    assert len(states) == 4  # independent of times(2)
    h, p, a = states[0].nodes.double().numpy(), w["pseudo_nodes"], adjacency(graph)
    for state in states[1:]:
        g = psi(p, p) @ psi(p, h) @ nl("value", h)
        p = p + update("pseudo_update", g)
        m = np.concatenate([psi(h, p) @ nl("refined", g), h], axis=1)
        h = h + update("node_update", (m + a @ nl("message", m)) / (a.sum(axis=1, keepdims=True) + 1))
        assert np.abs(state.nodes.numpy() - h).max() < 1e-4
        assert np.abs(state.node_proxies.numpy() - p).max() < 1e-4
