"""The OpenAPI 3.1 document of the HTTP interface, made from one table of operations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adar_serve.messages import HEADER_LENGTH, MAX_ID, MAX_INPUTS
from adar_serve.models import NAME
from adar_serve.page.samples import SEEDS
from adar_serve.service import Service
from adar_serve.tensors import DATATYPES, MAX_DIMENSIONS

Schema = dict[str, Any]
JSON, TEXT, BYTES, EVENTS = "application/json", "text/plain", "application/octet-stream", "text/event-stream"


def schema(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True)
class Operation:
    """One address with one method.

    Attributes:
        method: The HTTP method, in lower case.
        path: The address.
        name: The name of the operation.
        summary: What it does.
        answers: Status -> media type -> schema; the error responses are added.
        body: Media type -> schema of the request's body.
        query: Name -> schema of the query's parameters; all are optional.
        open: The operation needs no token.
    """

    method: str
    path: str
    name: str
    summary: str
    answers: dict[int, dict[str, Schema]]
    body: dict[str, Schema] | None = None
    query: dict[str, Schema] | None = None
    open: bool = False


def ok(name: str) -> dict[int, dict[str, Schema]]:
    """The status 200 with a JSON object."""
    return {200: {JSON: schema(name)}}


TEXT_SCHEMA: Schema = {"type": "string"}
ANY_OBJECT: dict[int, dict[str, Schema]] = {200: {JSON: {"type": "object"}}}
INFER_BODY = {JSON: schema("InferRequest"), BYTES: {}}
GRAPH_BODY = {JSON: schema("InferRequest"), BYTES: {}}
READINESS = {200: {JSON: schema("Ready")}, 503: {JSON: schema("Ready")}}
VERSION: Schema = {"type": "string", "description": "the highest version if it is missing"}

OPERATIONS = (
    Operation("get", "/v2", "server", "Name, version and extensions of the server", ok("Server")),
    Operation("get", "/v2/health/live", "live", "The process answers", ok("Live"), open=True),
    Operation("get", "/v2/health/ready", "ready", "The server takes requests", READINESS, open=True),
    Operation("get", "/metrics", "metrics", "Metrics for Prometheus", {200: {TEXT: TEXT_SCHEMA}}),
    Operation("get", "/openapi.json", "openapi", "This document", ANY_OBJECT, open=True),
    Operation("get", "/graphs", "graphs", "All graphs that stay on the server", ok("Graphs")),
    Operation(
        "put", "/graphs/{graph}", "put_graph", "Prepare a graph once: a .npz file, or tensors",
        {201: {JSON: schema("StoredGraph")}}, GRAPH_BODY, {"model": TEXT_SCHEMA, "version": VERSION},
    ),
    Operation("get", "/graphs/{graph}", "get_graph", "Facts about one graph", ok("StoredGraph")),
    Operation("delete", "/graphs/{graph}", "delete_graph", "Remove a graph", {204: {}}),
    Operation(
        "post", "/graphs/{graph}/nodes", "score_nodes", "Answer for new or changed nodes of a graph",
        {200: {JSON: schema("InferResponse"), BYTES: {}}}, INFER_BODY,
    ),
    Operation(
        "post", "/v2/repository/index", "index", "All models and versions, with their states",
        {200: {JSON: {"type": "array", "items": schema("ModelState")}}},
        {JSON: {"type": "object", "properties": {"ready": {"type": "boolean"}}}},
    ),
    Operation("post", "/v2/repository/models/{model}/load", "load", "Load a model again", {200: {}}),
    Operation("post", "/v2/repository/models/{model}/unload", "unload", "Unload a model", {200: {}}),
    Operation("get", "/v2/models/stats", "stats", "Counts and durations of all models", ok("Statistics")),
)  # fmt: skip

MODEL_OPERATIONS = (
    Operation("get", "", "model", "Inputs, outputs and versions of a model", ok("Model")),
    Operation("get", "/stats", "model_stats", "Counts and durations of a model", ok("Statistics")),
    Operation("get", "/ready", "model_ready", "The model takes requests", READINESS),
    Operation(
        "post", "/infer", "infer", "Run a model",
        {200: {JSON: schema("InferResponse"), BYTES: {}}}, INFER_BODY,
    ),
    Operation(
        "post", "/infer_stream", "infer_stream", "Run a model, and send events: step, answer, error",
        {200: {EVENTS: TEXT_SCHEMA}}, INFER_BODY,
    ),
)  # fmt: skip

PAGE_OPERATIONS = (
    Operation("get", "/", "page", "The web page", {200: {"text/html": TEXT_SCHEMA}}, open=True),
    Operation("get", "/page/{file}", "page_file", "A file of the web page", {200: {"*/*": {}}}, open=True),
    Operation("get", "/explore", "explore", "What the page can choose from", ANY_OBJECT),
    Operation(
        "post", "/explore/{model}", "explore_run",
        "Run a model on a sample, on a graph that stays, or on the graph file in the body, and send events: "
        "graph, step, frame, answer, error",
        {200: {EVENTS: TEXT_SCHEMA}}, GRAPH_BODY,
        {
            "version": VERSION,
            "max_steps": {"type": "integer", "minimum": 1},
            "exit": TEXT_SCHEMA,
            "solver": TEXT_SCHEMA,
            "graph": TEXT_SCHEMA,
            "sample": TEXT_SCHEMA,
            "nodes": {"type": "integer", "minimum": 1},
            "seed": {"type": "integer", "minimum": 0, "maximum": SEEDS - 1},
        },
    ),
)  # fmt: skip


def operations(*, page: bool) -> Iterator[Operation]:
    """All operations of a server, with the addresses of a model in both forms."""
    yield from OPERATIONS
    for prefix, suffix in (
        ("/v2/models/{model}", ""),
        ("/v2/models/{model}/versions/{version}", "_of_version"),
    ):
        for each in MODEL_OPERATIONS:
            path, name = prefix + each.path, each.name + suffix
            yield Operation(each.method, path, name, each.summary, each.answers, each.body)
    if page:
        yield from PAGE_OPERATIONS


def document(service: Service, *, page: bool) -> dict[str, Any]:
    """The document of a server."""
    found = service.server_metadata()
    models = service.models.all
    names: dict[str, Schema] = {
        "model": {"enum": sorted({each.name for each in models})},
        "version": {"enum": sorted({each.version for each in models})},
        "graph": TEXT_SCHEMA | {"pattern": f"^{NAME.pattern}$"},
        "file": TEXT_SCHEMA,
    }
    paths: dict[str, dict[str, Any]] = {}
    for each in operations(page=page):
        paths.setdefault(each.path, {})[each.method] = _described(each, names)
    needs_token: dict[str, Any] = {"security": [{"bearer": []}]} if service.tokens.needed else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": found["name"],
            "version": found["version"],
            "summary": "The Open Inference Protocol, version 2, with streaming and graphs that stay.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(service.limits.steps),
            "responses": {
                "Error": {"description": "What to change", "content": {JSON: {"schema": schema("Error")}}}
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        **needs_token,
    }


def _described(each: Operation, names: dict[str, Schema]) -> dict[str, Any]:
    error = {"$ref": "#/components/responses/Error"}
    responses: dict[str, Any] = {
        str(status): {"description": each.summary} | _content(media) for status, media in each.answers.items()
    }
    found: dict[str, Any] = {"operationId": each.name, "summary": each.summary}
    found["responses"] = responses | {"4XX": error, "5XX": error}
    if each.path.count("{") or each.query or each.body:
        found["parameters"] = list(_parameters(each, names))
    if each.body is not None:
        found["requestBody"] = {"required": each.method == "put"} | _content(each.body)
    if each.open:
        found["security"] = []
    return found


def _content(media: dict[str, Schema]) -> dict[str, Any]:
    return {"content": {kind: {"schema": one} if one else {} for kind, one in media.items()}} if media else {}


def _parameters(each: Operation, names: dict[str, Schema]) -> Iterator[dict[str, Any]]:
    for part in each.path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            yield {"name": name, "in": "path", "required": True, "schema": names[name]}
    for name, kind in (each.query or {}).items():
        yield {"name": name, "in": "query", "schema": kind}
    if BYTES in (each.body or {}):
        kind = {"type": "integer", "minimum": 0}
        about = "bytes of the JSON, if tensors follow it as bytes"
        yield {"name": HEADER_LENGTH, "in": "header", "schema": kind, "description": about}


def schemas(steps: int) -> dict[str, Schema]:
    """The schemas of the document."""
    text, whole = TEXT_SCHEMA, {"type": "integer", "minimum": 0}
    tensor = {
        "name": text,
        "datatype": {"enum": list(DATATYPES)},
        "shape": {"type": "array", "items": whole, "maxItems": MAX_DIMENSIONS},
    }
    data = {"type": "array", "items": {"type": ["number", "array"]}}
    port = tensor | {"shape": {"type": "array", "items": {"type": "integer", "minimum": -1}}}
    size = {"type": "object", "properties": {"binary_data_size": whole}}
    parameters = {
        "max_steps": {"type": "integer", "minimum": 1, "maximum": steps},
        "exit": text,
        "solver": text,
        "graph": text,
        "binary_data_output": {"type": "boolean"},
    }
    return {
        "Error": _object(error=text),
        "Live": _object(live={"type": "boolean"}),
        "Ready": _object(ready={"type": "boolean"}),
        "Server": _object(name=text, version=text, extensions={"type": "array", "items": text}),
        "Port": _object(**port),
        "Model": _object(
            name=text,
            versions={"type": "array", "items": text},
            platform=text,
            inputs={"type": "array", "items": schema("Port")},
            outputs={"type": "array", "items": schema("Port")},
            properties={"type": "object", "additionalProperties": text},
        ),
        "InputTensor": _object(**tensor) | {
            "properties": tensor | {"data": data, "parameters": size},
            "oneOf": [{"required": ["data"]}, {"required": ["parameters"]}],
        },
        "OutputTensor": _object(**tensor) | {"properties": tensor | {"data": data, "parameters": size}},
        "OutputChoice": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": text,
                "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
            },
        },
        "InferRequest": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "maxLength": MAX_ID},
                "inputs": {"type": "array", "items": schema("InputTensor"), "maxItems": MAX_INPUTS},
                "outputs": {"type": "array", "items": schema("OutputChoice"), "maxItems": MAX_INPUTS},
                "parameters": {"type": "object", "properties": parameters, "additionalProperties": False},
            },
        },
        "InferResponse": _object(
            model_name=text,
            model_version=text,
            outputs={"type": "array", "items": schema("OutputTensor")},
            parameters={"type": "object"},
        ),
        "StoredGraph": _object(name=text, model=text, version=text, nodes=whole, edges=whole, bytes=whole),
        "ModelState": _object(
            name=text, version=text, state={"enum": ["READY", "UNAVAILABLE"]}, reason=text
        ),
        "Statistics": _object(model_stats={"type": "array", "items": {"type": "object"}}),
        "Graphs": _object(graphs={"type": "array", "items": schema("StoredGraph")}),
    }  # fmt: skip


def _object(**properties: Schema) -> Schema:
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}
