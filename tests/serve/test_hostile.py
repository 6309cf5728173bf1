"""Requests that are wrong in random ways get an answer or a reason, never an error of the server."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adar_runtime import Graph
from tests.serve.servers import Running, tensor

ANSWERS = {200, 400, 404, 413, 415, 422}
words = st.sampled_from(["x", "edge_index", "nodes", "FP32", "INT64", "FP16", "BYTES", "\ud800", "", "graph"])
numbers = (
    st.integers(max_value=50) | st.floats() | st.sampled_from([-1, 0, 2**31, 2**63, 2**64, 10**400, 1e300])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | words, lambda inner: st.lists(inner) | st.dictionaries(words, inner)
)


def places(content: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside, except the numbers of the tensors."""
    keys = list(content) if isinstance(content, dict) else range(len(content))
    found = []
    for key in keys:
        found.append((content, key))
        if isinstance(content[key], dict | list) and key != "data":
            found += places(content[key])
    return found


def request(width: int) -> dict[str, Any]:
    return {
        "id": "a",
        "inputs": [
            tensor("x", np.ones((3, width))),
            tensor("edge_index", [[0, 1], [1, 2]]),
            tensor("nodes", [2, 0]),
        ],
        "parameters": {"max_steps": 2, "exit": "final", "solver": "euler"},
        "outputs": [{"name": "prediction", "parameters": {"binary_data": True}}],
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_request_is_answered_or_refused(served: Running, board: Graph, data: st.DataObject) -> None:
    content = copy.deepcopy(request(board.width))
    container, key = data.draw(st.sampled_from(range(len(places(content)))).map(places(content).__getitem__))
    container[key] = data.draw(values)
    response = served.http.post("/v2/models/board/infer", content=json.dumps(content).encode())
    assert response.status_code in ANSWERS, (response.text, served.log()[-1])


@settings(max_examples=25, deadline=None)
@given(body=st.binary(), length=st.none() | st.text("0123456789x-", max_size=30), packed=st.booleans())
def test_random_bytes_are_refused(served: Running, body: bytes, length: str | None, packed: bool) -> None:
    headers = {} if length is None else {"Inference-Header-Content-Length": length}
    headers |= {"Content-Encoding": "gzip"} if packed else {}
    response = served.http.post("/v2/models/board/infer", content=body, headers=headers)
    assert response.status_code in ANSWERS - {200}


def test_the_unchanged_request_is_answered(served: Running, board: Graph) -> None:
    assert served.http.post("/v2/models/board/infer", json=request(board.width)).status_code == 200


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fx", "a/b", "\ud800", "x" * 65])
def test_names_of_graphs_are_plain_words(served: Running, name: str) -> None:
    path = name.encode(errors="surrogatepass").hex("%")
    response = served.http.put(f"/graphs/%{path}?model=board", content=b"{}")
    assert response.status_code in (400, 404)
