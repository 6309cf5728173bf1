"""Drift in the metrics, and traces of OpenTelemetry."""

import grpc
import numpy as np
import pytest
from open_inference.grpc import protocol
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adar_runtime import Graph
from adar_serve import drift_watch
from tests.serve.servers import Running, eventually, tensor, tensors
from tests.serve.test_operation import metric

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def test_graphs_unlike_the_training_data_are_counted(
    served: Running, board: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_watch, "SECONDS", 0.0)
    names = [f'adar_drift_{each}_total{{model="board"}}' for each in ("checks", "warnings")]
    before = [metric(served, name) for name in names]
    short = {"max_steps": 2}
    assert served.infer(tensors(board), parameters=short).status_code == 200
    edges = tensor("edge_index", board.edge_index)
    unlike = [tensor("x", np.full((board.nodes, board.width), 50, np.float32)), edges]
    assert served.infer(unlike, parameters=short).status_code == 200
    assert [metric(served, name) for name in names] == [before[0] + 2, before[1] + 1]
    assert metric(served, 'adar_drift_score{model="board"}') > 0.25
    drift = [each["drift"] for each in served.log() if "drift" in each]
    assert "unlike the training data" in drift[-1][0]
    monkeypatch.setattr(drift_watch, "SECONDS", 60.0)
    served.infer(unlike, parameters=short)
    assert metric(served, names[0]) == before[0] + 2


def test_requests_continue_their_trace(
    served: Running, board: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))  # a span is exported when it ends
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    body = {"inputs": tensors(board), "parameters": {"max_steps": 3, "exit": "final"}}
    assert served.http.post("/v2/models/board/infer", json=body, headers=PARENT).status_code == 200
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        live = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive",
            request_serializer=protocol.ServerLiveRequest.SerializeToString,
            response_deserializer=protocol.ServerLiveResponse.FromString,
        )
        assert live(protocol.ServerLiveRequest(), metadata=tuple(PARENT.items()), timeout=30).live
    assert eventually(lambda: len(exporter.get_finished_spans()) == 2)
    over_http, over_grpc = exporter.get_finished_spans()
    assert over_http.name == "POST /v2/models/board/infer"
    assert over_http.attributes["adar.cell_calls"] == 3
    assert over_grpc.name.endswith("ServerLive")
    for each in (over_http, over_grpc):
        assert each.kind is trace.SpanKind.SERVER
        assert trace.format_trace_id(each.context.trace_id) == TRACE
        assert trace.format_span_id(each.parent.span_id) == SPAN
    assert eventually(lambda: [line.get("trace_id") for line in served.log()[-2:]] == [TRACE, TRACE])


def test_without_opentelemetry_the_server_answers(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adar_serve.tracing.is_installed", False)
    assert served.http.get("/v2", headers={**PARENT, "X-Request-ID": "untraced"}).status_code == 200
    assert eventually(lambda: served.log()[-1]["request_id"] == "untraced")
    assert "trace_id" not in served.log()[-1]
