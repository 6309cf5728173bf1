"""The Open Inference Protocol over gRPC, with a client made from the stubs."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from open_inference.grpc import protocol

from adar_runtime import Graph, load
from tests.serve.servers import Running, Settings, eventually, running

SERVICE = "/inference.GRPCInferenceService"
TOKEN = "a-token-of-enough-characters"


def call(channel: Any, name: str, /, *, to: Any = None, **fields: Any) -> Any:
    response = getattr(protocol, f"{name}Response")
    method = channel.unary_unary(
        f"{SERVICE}/{name}",
        request_serializer=getattr(protocol, f"{name}Request").SerializeToString,
        response_deserializer=response.FromString,
    )
    return (to or (lambda method, message: method(message, timeout=30)))(
        method, getattr(protocol, f"{name}Request")(**fields)
    )


def infer_fields(graph: Graph, *, raw: bool, steps: int = 20, exit: str | None = None) -> dict[str, Any]:
    arrays = {"x": ("FP32", graph.features), "edge_index": ("INT64", graph.edge_index)}
    inputs = []
    for name, (kind, array) in arrays.items():
        tensor = {"name": name, "datatype": kind, "shape": array.shape}
        field = {"FP32": "fp32_contents", "INT64": "int64_contents"}[kind]
        inputs.append(tensor if raw else {**tensor, "contents": {field: array.ravel().tolist()}})
    parameters = {"max_steps": protocol.InferParameter(int64_param=steps)}
    if exit is not None:
        parameters["exit"] = protocol.InferParameter(string_param=exit)
    contents = [np.ascontiguousarray(array).tobytes() for _, array in arrays.values()] if raw else []
    message_type = protocol.ModelInferRequest
    return {
        "model_name": "board",
        "inputs": [message_type.InferInputTensor(**each) for each in inputs],
        "parameters": parameters,
        "raw_input_contents": contents,
    }


def test_health_metadata_and_errors(served: Running, board: Graph) -> None:
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        assert call(channel, "ServerLive").live
        assert call(channel, "ServerReady").ready
        assert call(channel, "ModelReady", name="board").ready
        assert call(channel, "ServerMetadata").name == "adar-deploy"
        found = call(channel, "ModelMetadata", name="board")
        assert (list(found.versions), list(found.inputs[0].shape)) == (["1"], [-1, board.width])
        for fields, code in (
            ({"model_name": "none"}, grpc.StatusCode.NOT_FOUND),
            ({"model_name": "board"}, grpc.StatusCode.INVALID_ARGUMENT),
            (infer_fields(board, raw=True, steps=0), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call(channel, "ModelInfer", **fields)
            assert error.value.code() == code


@pytest.mark.parametrize("raw", [True, False])
def test_infer_gives_the_answer_of_the_runtime(
    served: Running, board: Graph, bundle_folder: Path, raw: bool
) -> None:
    expected = load(bundle_folder, "onnxruntime-cpu", 1).run(board, 20)
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        answer = call(channel, "ModelInfer", **infer_fields(board, raw=raw))
    names = [output.name for output in answer.outputs]
    assert names == ["prediction", "probability", "alignment", "best_step"]
    assert bool(answer.raw_output_contents) == raw
    if raw:
        prediction = np.frombuffer(answer.raw_output_contents[0], np.int64)
    else:
        prediction = np.array(answer.outputs[0].contents.int64_contents)
    assert np.array_equal(prediction, expected.predictions)


@pytest.mark.parametrize("raw", [True, False])
def test_numbers_that_are_there_twice_are_refused(served: Running, board: Graph, raw: bool) -> None:
    """They could differ: the server must not choose."""
    fields = infer_fields(board, raw=raw)
    contents = fields["inputs"][0].contents
    if raw:
        contents.fp32_contents.extend([9.0] * board.features.size)
    else:
        contents.fp64_contents.extend([9.0] * board.features.size)
    with grpc.insecure_channel(served.addresses["grpc"]) as channel, pytest.raises(grpc.RpcError) as refused:
        call(channel, "ModelInfer", **fields)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "x has numbers in" in refused.value.details()


def test_ids_and_names_are_those_of_http(served: Running, board: Graph) -> None:
    wrong = ({"id": "a\x1b[31m"}, {"parameters": {"solver": protocol.InferParameter(string_param="")}})
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        for each in wrong:
            with pytest.raises(grpc.RpcError) as refused:
                call(channel, "ModelInfer", **infer_fields(board, raw=True) | each)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_client_that_cancels_stops_its_run(served: Running, board: Graph) -> None:
    with grpc.insecure_channel(served.addresses["grpc"]) as channel:
        fields = infer_fields(board, raw=True, steps=2_000_000, exit="final")
        future = call(channel, "ModelInfer", to=lambda method, message: method.future(message), **fields)
        assert eventually(lambda: served.service.runs.running == 1)
        future.cancel()
        assert eventually(lambda: served.service.runs.running == 0)
    assert eventually(
        lambda: any(line["status"] == 499 for line in served.log() if line["protocol"] == "grpc")
    )


def test_tokens(bundle_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    settings = Settings(port=0, grpc_port=0, tokens=tmp_path / "tokens", drain_seconds=0)
    with (
        running([f"board={bundle_folder}"], settings) as found,
        grpc.insecure_channel(found.addresses["grpc"]) as channel,
    ):
        assert call(channel, "ServerLive").live
        with pytest.raises(grpc.RpcError) as error:
            call(channel, "ServerMetadata")
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED

        def with_token(method: Any, message: Any) -> Any:
            return method(message, metadata=[("authorization", f"Bearer {TOKEN}")], timeout=30)

        assert call(channel, "ServerMetadata", to=with_token).name == "adar-deploy"
