"""POST /graphs/NAME/nodes: answers for new and changed nodes of a graph that stays."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import Graph, load
from adar_runtime.in_context.start import known_labels
from adar_runtime.phases.context import Context
from adar_serve import Limits
from adar_serve.graph_store import GraphStore
from adar_serve.models import load_models
from adar_serve.refusals import RefusedError
from adar_serve.shared_graphs import SharedGraphs
from tests.in_context_graphs import block_graph
from tests.serve.servers import Running, Settings, outputs, running, tensor, tensors

OPTIONS = {"max_steps": 6, "exit": "final", "solver": "euler"}


@pytest.fixture(scope="module")
def kept(bundle_folder: Path, described_bundle: Path, board: Graph) -> Iterator[Running]:
    with running([f"board={bundle_folder}", f"described={described_bundle}"]) as found:
        body = {"inputs": tensors(board)}
        assert found.http.put("/graphs/g?model=board", json=body).status_code == 201
        yield found


@pytest.fixture
def context(bundle_folder: Path, board: Graph) -> Context:
    return load(bundle_folder, "onnxruntime-cpu", 1).remember(board, 6, "final", "euler")


def ask(found: Running, *inputs: dict, **parameters: object) -> httpx.Response:
    body = {"inputs": list(inputs), "parameters": OPTIONS | parameters}
    return found.http.post("/graphs/g/nodes", json=body)


def test_new_nodes_get_the_answers_of_the_context(kept: Running, context: Context, board: Graph) -> None:
    x, edges = board.features[:2] + 1, np.array([[3, 8, 144], [144, 145, 145]])
    expected = context.predict(x, edges)
    for _ in range(2):
        response = ask(kept, tensor("x", x), tensor("edge_index", edges))
        found = outputs(response)
        np.testing.assert_allclose(found["probability"], expected.probabilities, atol=1e-6)
    assert response.json()["parameters"]["max_steps"] == 6
    (stored,) = kept.http.get("/graphs").json()["graphs"]
    assert stored["bytes"] > context.bytes
    alone = ask(kept, tensor("x", x), tensor("edge_index", np.zeros((2, 0), np.int64)), max_steps=3)
    assert outputs(alone)["prediction"].shape == (2,)


def test_the_pretrained_model_answers_for_new_nodes() -> None:
    graph, folder = replace(block_graph(), target_features=None), named_bundle(PRETRAINED)
    expected = load(folder, "onnxruntime-cpu", 1).remember(graph, 6, "final", "euler")
    x, edges = graph.rows(0, 2) + 1, np.array([[3, 8, 240], [240, 241, 241]])
    with running([f"any={folder}"]) as found:
        inputs = {"x": graph.features, "edge_index": graph.edge_index, "y": known_labels(graph)}
        body = {"inputs": [tensor(name, array) for name, array in inputs.items()]}
        response = found.http.put("/graphs/g?model=any", json=body)
        assert response.status_code == 201, response.text
        answer = outputs(ask(found, tensor("x", x), tensor("edge_index", edges)))
        nodes = np.array([7])
        changed = ask(found, tensor("nodes", nodes), tensor("x", -x[:1]), tensor("edge_index", edges[:, :0]))
        (stored,) = found.http.get("/graphs").json()["graphs"]
    np.testing.assert_allclose(answer["probability"], expected.predict(x, edges).probabilities, atol=1e-5)
    updated = expected.update(nodes, -x[:1], edges[:, :0]).probabilities
    np.testing.assert_allclose(outputs(changed)["probability"], updated, atol=1e-5)
    assert stored["bytes"] > expected.bytes + graph.features.nbytes


def test_changed_nodes_are_remembered(kept: Running, context: Context, board: Graph) -> None:
    x, edges, nodes = board.features[[7]] * -3, np.array([[3, 8], [7, 7]]), np.array([7])
    changed = outputs(ask(kept, tensor("nodes", nodes), tensor("x", x), tensor("edge_index", edges)))
    expected = context.update(nodes, x, edges).probabilities
    np.testing.assert_allclose(changed["probability"], expected, atol=1e-6)
    new = board.features[:1], np.array([[7], [144]])
    found = outputs(ask(kept, tensor("x", new[0]), tensor("edge_index", new[1])))
    np.testing.assert_allclose(found["probability"], context.predict(*new).probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.zeros((1, 10), np.float32)}, "the input edge_index is missing"),
        (
            {"x": np.zeros((1, 6), np.float32), "edge_index": np.zeros((2, 0), int)},
            "the nodes have 6 features",
        ),
        ({"x": np.zeros((1, 10), np.float32), "edge_index": np.full((2, 1), 145)}, "edges contains 145"),
        (
            {
                "x": np.zeros((1, 10), np.float32),
                "edge_index": np.zeros((2, 0), int),
                "nodes": np.array([999]),
            },
            "nodes contains 999",
        ),
    ],
)
def test_errors_say_what_to_change(kept: Running, inputs: dict, message: str) -> None:
    response = ask(kept, *(tensor(name, array) for name, array in inputs.items()))
    assert (response.status_code, message in response.text) == (400, True), response.text


def test_other_refusals(kept: Running, bundle_folder: Path, board: Graph) -> None:
    assert kept.http.post("/graphs/none/nodes", json={}).status_code == 404
    limits = Limits(graphs=1, steps=1_000_000)
    settings = Settings(port=0, grpc_port=None, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}"], settings) as small:
        small.http.put("/graphs/g", json={"inputs": tensors(board)})
        x = tensor("x", board.features[:1]), tensor("edge_index", np.zeros((2, 0), int))
        refused = ask(small, *x, max_steps=100_000)
        assert (refused.status_code, "bytes" in refused.text) == (400, True)
        assert ask(small, *x).status_code == 200


def test_a_graph_that_is_replaced_or_removed_during_an_answer_stays_so(
    bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    models = load_models([f"board={bundle_folder}"], backend="onnxruntime-cpu", threads=1)
    options = {"budget": 3, "stop": "final", "solver": "euler"}
    inputs = {"x": board.features[:1], "edge_index": np.array([[7], [144]])}
    for store in (GraphStore(Limits()), SharedGraphs(Limits(), tmp_path, models)):
        store.add("g", models.all[0], board)
        old = store.use("g")
        old.score(inputs, options, store.limit, lambda: None)
        store.add("g", models.all[0], Graph(board.features + 1, board.edge_index))
        store.account(old)
        assert store.use("g").prepared.graph.features[0, 0] == board.features[0, 0] + 1
        store.remove("g")
        store.account(old)
        with pytest.raises(RefusedError, match="there is no graph 'g'"):
            store.use("g")


def test_an_inference_of_a_removed_graph_leaves_no_files(
    bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    models = load_models([f"board={bundle_folder}"], backend="onnxruntime-cpu", threads=1)
    store = SharedGraphs(Limits(), tmp_path, models)
    store.add("g", models.all[0], board)
    stored, removals = store.use("g"), ["g"]
    options = {"budget": 3, "stop": "final", "solver": "euler"}
    inputs = {"x": board.features[:1], "edge_index": np.array([[7], [144]])}

    def remove_once() -> None:
        if removals:
            store.remove(removals.pop())

    assert stored.score(inputs, options, store.limit, remove_once).scores.shape[0] == 1
    assert [*(tmp_path / "data").iterdir()] == []
    with pytest.raises(RefusedError, match="the graph was replaced or removed just now") as refused:
        stored.score(inputs, options, store.limit, remove_once)
    assert (refused.value.status, [*(tmp_path / "data").iterdir()]) == (409, [])
    with pytest.raises(FileNotFoundError):
        stored.kept._write({})
    assert [*(tmp_path / "data").iterdir()] == []


def test_a_graph_of_a_model_that_was_loaded_again_gets_no_answers_of_the_old_one(
    kept: Running, board: Graph
) -> None:
    old = kept.service.models.find("board")
    fresh = kept.service.models.opened("board")
    kept.service.graphs.add("late", old, board)  # a PUT that ends after the model was loaded again
    kept.service.models.replace(fresh)
    try:
        body = {"inputs": [tensor("x", board.features[:1]), tensor("edge_index", np.zeros((2, 0), int))]}
        refused = kept.http.post("/graphs/late/nodes", json=body)
    finally:
        kept.service.models.replace([old])
        kept.service.graphs.remove("late")
    assert (refused.status_code, "was prepared for the model board" in refused.text) == (400, True)
