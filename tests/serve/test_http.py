"""The Open Inference Protocol over HTTP."""

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import Graph, Result, load, write_graph
from adar_runtime.graph.synthetic import minesweeper
from adar_serve import Limits, Settings
from adar_serve.models import Model
from adar_serve.refusals import RefusedError
from tests.helpers import random_graph
from tests.in_context_graphs import block_graph
from tests.serve.servers import Running, outputs, running, tensor, tensors


@pytest.fixture(scope="module")
def expected(bundle_folder: Path, board: Graph) -> Result:
    return load(bundle_folder, "onnxruntime-cpu", 1).run(board, 20)


def test_health_and_metadata(served: Running, board: Graph) -> None:
    assert served.http.get("/v2/health/live").status_code == 200
    assert served.http.get("/v2/health/ready").status_code == 200
    assert served.http.get("/v2").json()["extensions"] == [
        "binary_tensor_data",
        "model_repository",
        "statistics",
    ]
    found = served.http.get("/v2/models/board").json()
    assert (found["name"], found["versions"]) == ("board", ["1"])
    assert found["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, board.width]}
    assert [port["name"] for port in found["outputs"]] == [
        "prediction",
        "probability",
        "alignment",
        "best_step",
    ]
    assert served.http.get("/v2/models/board/versions/1/ready").status_code == 200
    assert served.http.get("/v2/models/board/versions/2").status_code == 404


def test_json_gives_the_answer_of_the_runtime(served: Running, board: Graph, expected: Result) -> None:
    response = served.infer(tensors(board), id="one", parameters={"max_steps": 20})
    found, content = outputs(response), response.json()
    assert np.array_equal(found["prediction"], expected.predictions)
    assert found["probability"] == pytest.approx(expected.probabilities, abs=1e-6)
    assert found["alignment"] == pytest.approx(expected.alignment)
    assert found["best_step"].tolist() == [expected.best_step]
    assert (content["id"], content["model_name"], content["model_version"]) == ("one", "board", "1")
    assert content["parameters"]["stop_reason"] == expected.stop_reason.name.lower()


def test_nested_numbers_are_nested_like_the_shape(served: Running, board: Graph, expected: Result) -> None:
    x, edges = tensors(board)
    x["data"] = board.features.tolist()
    found = outputs(served.infer([x, edges], parameters={"max_steps": 20}))
    assert found["probability"] == pytest.approx(expected.probabilities, abs=1e-6)
    first, *rest = board.features.tolist()
    ragged = [first[:-1], [first[-1], *rest[0]], *rest[1:]]
    for nested in (board.features.T.tolist(), [board.features.ravel().tolist()], ragged, [first, 1.0]):
        refused = served.infer([x | {"data": nested}, edges])
        assert (refused.status_code, "not like its shape" in refused.text) == (400, True)


def test_an_answer_for_nodes_is_no_larger_than_that_for_all(served: Running, board: Graph) -> None:
    """Otherwise a small request would fill the memory: a byte for each row of a thousand classes."""
    repeated = tensor("nodes", np.zeros(board.nodes, int))
    assert len(outputs(served.infer([*tensors(board), repeated]))["prediction"]) == board.nodes
    more = tensor("nodes", np.zeros(board.nodes + 1, int))
    refused = served.infer([*tensors(board), more])
    assert (refused.status_code, "145 row numbers, but x has 144" in refused.text) == (400, True)


def binary_body(graph: Graph, **content: object) -> tuple[bytes, dict[str, str]]:
    arrays = {"x": ("FP32", graph.features), "edge_index": ("INT64", graph.edge_index)}
    inputs = [
        {"name": name, "datatype": kind, "shape": list(a.shape), "parameters": {"binary_data_size": a.nbytes}}
        for name, (kind, a) in arrays.items()
    ]
    header = json.dumps({"inputs": inputs, **content}).encode()
    body = b"".join([header, *(np.ascontiguousarray(a).tobytes() for _, a in arrays.values())])
    return body, {"Inference-Header-Content-Length": str(len(header))}


@pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
def test_binary_tensors_and_compressed_bodies(
    served: Running, board: Graph, expected: Result, encoding: str | None
) -> None:
    content = {"parameters": {"max_steps": 20}, "outputs": [
        {"name": "probability", "parameters": {"binary_data": True}}, {"name": "best_step"}]}  # fmt: skip
    body, headers = binary_body(board, **content)
    if encoding:
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        headers |= {"Content-Encoding": encoding}
    headers |= {"Accept-Encoding": encoding or "identity"}
    response = served.http.post("/v2/models/board/infer", content=body, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers.get("content-encoding") == encoding
    end = int(response.headers["inference-header-content-length"])
    header = json.loads(response.content[:end])
    assert [each["name"] for each in header["outputs"]] == ["probability", "best_step"]
    assert header["outputs"][1]["data"] == [expected.best_step]
    found = np.frombuffer(response.content[end:], np.float32).reshape(header["outputs"][0]["shape"])
    assert found == pytest.approx(expected.probabilities, abs=1e-6)


def test_nodes_chooses_rows(served: Running, board: Graph, expected: Result) -> None:
    nodes = [5, 2, 5]
    response = served.infer([*tensors(board), tensor("nodes", nodes)], parameters={"max_steps": 20})
    assert np.array_equal(outputs(response)["prediction"], expected.predictions[nodes])
    for wrong in ([144], [-1]):
        response = served.infer([*tensors(board), tensor("nodes", wrong)], parameters={"max_steps": 2})
        assert (response.status_code, "0 to 143" in response.json()["error"]) == (400, True)


def test_described_classes_exit_and_solver(served: Running, described_bundle: Path) -> None:
    graph = random_graph(30, 90, seed=3)
    parameters = {"max_steps": 8, "exit": "final", "solver": "euler"}
    found = outputs(served.infer(tensors(graph), "described", parameters=parameters))
    result = load(described_bundle, "onnxruntime-cpu", 1).run(graph, 8, "final")
    assert np.array_equal(found["prediction"], result.predictions)
    assert len(found["alignment"]) == 9


def test_a_graph_without_edges(served: Running, board: Graph) -> None:
    inputs = [tensor("x", board.features[:3]), tensor("edge_index", np.zeros((2, 0), np.int64))]
    assert outputs(served.infer(inputs, parameters={"max_steps": 3}))["prediction"].shape == (3,)


def wrong_requests(board: Graph) -> dict[str, tuple[dict, str]]:
    x, edges = tensors(board)
    return {
        "no x": ({"inputs": [edges]}, "the input x is missing"),
        "unknown input": ({"inputs": [x, edges, tensor("edge_weight", [1.0])]}, "no input 'edge_weight'"),
        "twice": ({"inputs": [x, x]}, "there twice"),
        "texts": ({"inputs": [{**x, "datatype": "BYTES"}, edges]}, "datatype 'BYTES'"),
        "a text among numbers": ({"inputs": [{**x, "shape": [1, 1], "data": ["1"]}, edges]}, "not a number"),
        "too few numbers": ({"inputs": [{**x, "data": [1.0]}, edges]}, "has 1 numbers"),
        "a huge shape": ({"inputs": [{**x, "shape": [2**39, 2**39]}, edges]}, "needs"),
        "a negative size": ({"inputs": [{**x, "shape": [-1, 7]}, edges]}, "not a size"),
        "an id out of range": ({"inputs": [x, tensor("edge_index", [[0], [999]])]}, "valid ids are 0–143"),
        "infinite": ({"inputs": [tensor("x", np.full((2, board.width), np.inf)), edges]}, "not a finite"),
        "steps": ({"inputs": [x, edges], "parameters": {"max_steps": 0}}, "choose 1 to 2,000,000"),
        "too many steps": ({"inputs": [x, edges], "parameters": {"max_steps": 10**9}}, "choose 1 to"),
        "rule": ({"inputs": [x, edges], "parameters": {"exit": "never"}}, "no stop rule 'never'"),
        "solver": ({"inputs": [x, edges], "parameters": {"solver": 3}}, "not a name"),
        "parameter": ({"inputs": [x, edges], "parameters": {"steps": 3}}, "unknown parameter 'steps'"),
        "output": ({"inputs": [x, edges], "outputs": [{"name": "y"}]}, "no output 'y'"),
        "list": ([], "not a JSON object"),
    }


@pytest.mark.parametrize("case", wrong_requests(minesweeper(side=3)))
def test_errors_say_what_to_fix(served: Running, board: Graph, case: str) -> None:
    content, message = wrong_requests(board)[case]
    body = json.dumps(content)
    response = served.http.post("/v2/models/board/infer", content=body)
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"inputs": [], "inputs": []}', {}, 400),
        (b"{}", {"Inference-Header-Content-Length": "9"}, 400),
        (b"{}", {"Inference-Header-Content-Length": "x"}, 400),
        (b"not gzip", {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"{}", mtime=0)[:-3], {"Content-Encoding": "gzip"}, 400),
        (b"{}", {"Content-Encoding": "br"}, 415),
    ],
)
def test_bodies_that_are_no_requests(served: Running, body: bytes, headers: dict, status: int) -> None:
    response = served.http.post("/v2/models/board/infer", content=body, headers=headers)
    assert (response.status_code, set(response.json())) == (status, {"error"})


def test_unknown_addresses_and_methods(served: Running) -> None:
    assert served.http.get("/nothing").json() == {"error": "there is no such address"}
    assert served.http.get("/v2/models/board/infer").status_code == 405
    response = served.http.post("/v2/models/other/infer", json={})
    assert (response.status_code, "board, described" in response.text) == (404, True)


def test_a_model_with_weights_takes_them(bundle_folder: Path, board: Graph) -> None:
    bundle = load(bundle_folder, "onnxruntime-cpu", 1)
    bundle.manifest = replace(bundle.manifest, edge_weights=True)
    model = Model("weighted", "1", bundle)
    assert "edge_weight" in [port.name for port in model.inputs]
    weights = np.full(board.edges, 2.0, np.float32)
    inputs = {"x": board.features, "edge_index": board.edge_index, "edge_weight": weights}
    model.check_inputs(inputs, Limits())
    assert np.array_equal(model.graph(inputs).edge_weight, weights)
    with pytest.raises(RefusedError, match="edge_weight has 2 dimensions"):
        model.check_inputs(inputs | {"edge_weight": weights[None]}, Limits())


def test_the_pretrained_model_takes_graphs_of_any_width() -> None:
    folder, graph = named_bundle(PRETRAINED), replace(block_graph(), train_mask=None)
    with running([f"pretrained={folder}"]) as found:
        answer = outputs(found.infer(tensors(graph), "pretrained", parameters={"max_steps": 8}))
    result = load(folder, "onnxruntime-cpu", 1).run(graph, 8)
    np.testing.assert_array_equal(answer["prediction"], result.predictions)


@pytest.mark.parametrize("isolate", [False, True])
def test_the_pretrained_model_takes_known_labels(isolate: bool) -> None:
    folder, graph = named_bundle(PRETRAINED), block_graph()
    assert graph.labels is not None
    assert graph.train_mask is not None
    known = tensor("y", np.where(graph.train_mask[0], graph.labels, -1))
    bundle = load(folder, "onnxruntime-cpu", 1)
    with running([f"pretrained={folder}"], Settings(port=0, grpc_port=0, isolate=isolate)) as found:
        for given in (graph, replace(graph, target_features=None)):  # with and without descriptions
            inputs = [*tensors(given), known]
            answer = outputs(found.infer(inputs, "pretrained", parameters={"max_steps": 8}))
            np.testing.assert_allclose(answer["probability"], bundle.run(given, 8).probabilities, atol=1e-5)
        ports = found.http.get("/v2/models/pretrained").json()["inputs"]
        assert {"name": "y", "datatype": "INT64", "shape": [-1]} in ports


def test_known_labels_may_be_unsigned() -> None:
    """Then all of them are known."""
    graph = replace(block_graph(), target_features=None)
    with running([f"pretrained={named_bundle(PRETRAINED)}"]) as found:
        answers = [
            outputs(found.infer([*tensors(graph), tensor("y", graph.labels, datatype)], "pretrained"))
            for datatype in ("INT64", "UINT8", "UINT64")
        ]
    for answer in answers[1:]:
        assert np.array_equal(answer["probability"], answers[0]["probability"])


def test_known_labels_that_do_not_fit_are_refused() -> None:
    graph = replace(block_graph(), target_features=None)
    cases = [
        (np.full(240, 1.5, np.float32), 400, "y holds numbers that are not integers"),
        (np.full(240, 2**40), 413, "y has 1,099,511,627,777 classes"),
        (np.full((240, 1), 1), 400, "y has 2 dimensions"),
        (np.zeros(239, np.int64), 400, "y has 239 labels, but x has 240 nodes"),
        (np.full(240, -1), 400, "known labels"),
        (np.zeros(240, np.int64), 400, "known labels"),
    ]
    with running([f"pretrained={named_bundle(PRETRAINED)}"]) as found:
        for labels, status, said in cases:
            refused = found.infer([*tensors(graph), tensor("y", labels)], "pretrained")
            assert (refused.status_code, said in refused.json()["error"]) == (status, True), refused.text


def test_only_the_pretrained_model_takes_known_labels(served: Running, board: Graph) -> None:
    refused = served.infer([*tensors(board), tensor("y", np.zeros(board.nodes, np.int64))])
    assert (refused.status_code, "no input 'y'" in refused.json()["error"]) == (400, True)


def test_a_stored_graph_of_the_pretrained_model_keeps_its_labels(tmp_path: Path) -> None:
    folder, graph = named_bundle(PRETRAINED), replace(block_graph(), target_features=None)
    bundle = load(folder, "onnxruntime-cpu", 1)
    with running([f"pretrained={folder}"]) as found:
        for given in (graph, block_graph()):  # without and with descriptions
            write_graph(tmp_path / "graph.npz", given)
            stored = found.http.put("/graphs/g", content=(tmp_path / "graph.npz").read_bytes())
            assert stored.status_code == 201, stored.text
            answer = outputs(found.infer([], "pretrained", parameters={"graph": "g", "max_steps": 8}))
            np.testing.assert_allclose(answer["probability"], bundle.run(given, 8).probabilities, atol=1e-5)
        write_graph(tmp_path / "graph.npz", replace(graph, train_mask=None))
        refused = found.http.put("/graphs/g", content=(tmp_path / "graph.npz").read_bytes())
        assert (refused.status_code, "train_mask" in refused.json()["error"]) == (400, True)


def test_a_graph_that_needs_too_much_memory_is_refused_before_it_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few kilobytes with a million nodes and 1,000 classes took 19 GB and ended the server."""
    graph = Graph(np.ones((20_000, 1)), np.zeros((2, 0), np.int64), target_features=np.ones((1000, 1)))
    write_graph(tmp_path / "graph.npz", graph)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(300 * 2**20))
    with running([f"pretrained={named_bundle(PRETRAINED)}"]) as found:
        refused = found.http.put("/graphs/g", content=(tmp_path / "graph.npz").read_bytes())
    assert refused.status_code == 400, refused.text
    assert "bytes" in refused.json()["error"]


def test_versions_side_by_side(bundle_folder: Path, described_bundle: Path, board: Graph) -> None:
    with running([f"m:2={bundle_folder}", f"m:10={described_bundle}"]) as found:
        assert found.http.get("/v2/models/m").json()["versions"] == ["2", "10"]
        assert found.http.get("/v2/models/m").json()["inputs"][0]["shape"] == [-1, 6]  # the highest version
        answer = found.http.post(
            "/v2/models/m/versions/2/infer", json={"inputs": tensors(board), "parameters": {"max_steps": 2}}
        )
        assert answer.json()["model_version"] == "2"


def test_what_would_be_ignored_is_refused(served: Running, board: Graph) -> None:
    """Numbers that are there twice, and outputs beyond the limit."""
    twice = tensors(board)
    twice[0]["parameters"] = {"binary_data_size": 0}
    assert "send one of them" in served.infer(twice).json()["error"]
    many = served.infer(tensors(board), outputs=[{"name": "prediction"}] * 17)
    assert (many.status_code, "more than 16" in many.text) == (400, True)
