"""The OpenAPI document describes every address, and the responses are as it says."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from adar_runtime import Graph
from adar_serve.http_app import http_app
from adar_serve.openapi import JSON
from tests.serve.servers import Running, tensor, tensors

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = ROOT / "build/contract/bin/schemathesis"


@pytest.fixture(scope="module")
def described(served: Running) -> dict[str, Any]:
    return served.http.get("/openapi.json").json()


def test_every_route_is_described(served: Running, described: dict[str, Any]) -> None:
    app = http_app(served.service)._router  # type: ignore[attr-defined]
    routes = [each for each in app.routes if isinstance(each, Route)]
    found = {
        (each.path.replace(":path", ""), method.lower()) for each in routes for method in each.methods or ()
    }
    listed = {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert listed == {each for each in found if each[1] != "head"}


def test_names_and_references_are_valid(described: dict[str, Any]) -> None:
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    references = set(json.dumps(described).split('"$ref": "')[1:])
    for each in references:
        *_, group, name = each.split('"')[0].split("/")
        assert name in described["components"][group]


def check(described: dict[str, Any], path: str, response: httpx.Response) -> None:
    """Compare a response with the document."""
    operation = described["paths"][path][response.request.method.lower()]
    status = str(response.status_code)
    answers = operation["responses"]
    answer = answers.get(status) or answers[f"{status[0]}XX"]
    if "$ref" in answer:
        answer = described["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    media = answer["content"][response.headers["content-type"].split(";")[0]]
    if response.headers["content-type"] == JSON:
        schema = media["schema"] | {"components": described["components"]}
        Draft202012Validator(schema).validate(response.json())


def test_responses_are_as_described(served: Running, described: dict[str, Any], board: Graph) -> None:
    client = served.http
    request = {"inputs": tensors(board), "parameters": {"max_steps": 2}}
    model = "/v2/models/{model}"
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/metrics", "/openapi.json", "/explore", "/"):
        check(described, path, client.get(path))
    check(described, model, client.get("/v2/models/board"))
    check(described, model, client.get("/v2/models/none"))
    check(described, model + "/versions/{version}/ready", client.get("/v2/models/board/versions/1/ready"))
    check(described, model + "/infer", client.post("/v2/models/board/infer", json=request))
    check(described, model + "/infer", client.post("/v2/models/board/infer", json={"inputs": 3}))
    check(described, model + "/infer_stream", client.post("/v2/models/board/infer_stream", json=request))
    check(described, "/graphs/{graph}", client.put("/graphs/one?model=board", json=request))
    check(described, "/graphs/{graph}", client.get("/graphs/one"))
    check(described, "/graphs", client.get("/graphs"))
    nodes = {"inputs": [tensor("x", board.features[:1]), tensor("edge_index", [[3], [board.nodes]])]}
    check(described, "/graphs/{graph}/nodes", client.post("/graphs/one/nodes", json=nodes))
    check(described, "/v2/repository/index", client.post("/v2/repository/index", json={"ready": True}))
    check(described, "/v2/repository/models/{model}/load", client.post("/v2/repository/models/board/load"))
    check(described, "/v2/models/stats", client.get("/v2/models/stats"))
    check(described, model + "/stats", client.get("/v2/models/board/stats"))
    assert client.delete("/graphs/one").status_code == 204
    Draft202012Validator(
        {"$ref": "#/components/schemas/InferRequest", "components": described["components"]}
    ).validate(request)


def test_a_wrong_method_names_the_allowed_ones(served: Running) -> None:
    response = served.http.post("/graphs/one")
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, GET, HEAD, PUT"


@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed: make contract")
def test_schemathesis(served: Running, tmp_path: Path) -> None:
    """Requests that fit the document, and requests that do not: no answer may contradict the document."""
    command = [
        SCHEMATHESIS, "run", f"{served.addresses['http']}/openapi.json", "--seed", "1", "--max-examples",
        os.environ.get("ADAR_EXAMPLES", "10"), "--phases", "coverage,fuzzing", "--no-color",
        # A document cannot say which tensors are a graph, so most requests that fit it are refused.
        "--exclude-checks", "positive_data_acceptance", "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout
