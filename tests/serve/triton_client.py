"""The unmodified tritonclient against a server. Run by test_triton_client.py, in the client's environment.

    python triton_client.py HTTP GRPC GRAPH.npz

Prints one JSON object: the prediction for each way to ask.
"""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http

PARAMETERS = {"max_steps": 20}


def tensors(module, arrays, **options):
    found = []
    for name, kind in (("x", "FP32"), ("edge_index", "INT64")):
        found.append(module.InferInput(name, list(arrays[name].shape), kind))
        found[-1].set_data_from_numpy(arrays[name], **options)
    return found


def over_http(address, arrays):
    module, found = tritonclient.http, {}
    with module.InferenceServerClient(address.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("board", "1")
        assert client.get_server_metadata()["name"] == "adar-deploy"
        assert client.get_model_metadata("board")["versions"] == ["1"]
        for binary in (True, False):
            for packed in (None, "gzip", "deflate"):
                answer = client.infer(
                    "board",
                    tensors(module, arrays, binary_data=binary),
                    outputs=[module.InferRequestedOutput("prediction", binary_data=binary)],
                    parameters=PARAMETERS,
                    request_id="7",
                    request_compression_algorithm=packed,
                    response_compression_algorithm=packed,
                )
                assert answer.get_response()["id"] == "7"
                found[f"http {binary} {packed}"] = answer.as_numpy("prediction").tolist()
        answer = client.infer("board", tensors(module, arrays), model_version="1", parameters=PARAMETERS)
        found["http all outputs"] = answer.as_numpy("prediction").tolist()
        assert answer.as_numpy("probability").shape == (len(arrays["x"]), 2)
        try:
            client.infer("board", tensors(module, arrays)[:1])
        except tritonclient.utils.InferenceServerException as error:
            found["http error"] = str(error)
        index = client.get_model_repository_index()
        assert {"name": "board", "version": "1", "state": "READY", "reason": ""} in index
        (statistics,) = client.get_inference_statistics("board", "1")["model_stats"]
        assert statistics["inference_count"] >= 7
    return found


def over_grpc(address, arrays):
    module, found = tritonclient.grpc, {}
    with module.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("board")
        assert client.get_server_metadata().name == "adar-deploy"
        assert list(client.get_model_metadata("board").versions) == ["1"]
        for packed in (None, "gzip", "deflate"):
            answer = client.infer(
                "board", tensors(module, arrays), parameters=PARAMETERS, compression_algorithm=packed
            )
            found[f"grpc {packed}"] = answer.as_numpy("prediction").tolist()
        responses = queue.Queue()
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer("board", tensors(module, arrays), parameters=PARAMETERS)
        steps, final = [], False
        while not final:
            result, error = responses.get(timeout=30)
            assert error is None, error
            final = result.get_response().parameters["triton_final_response"].bool_param
            if not final:
                steps.append(int(result.as_numpy("step")[0]))
        client.stop_stream()
        assert steps == list(range(len(result.as_numpy("alignment"))))
        found["grpc stream"] = result.as_numpy("prediction").tolist()
        try:
            client.infer("board", tensors(module, arrays)[:1])
        except tritonclient.utils.InferenceServerException as error:
            found["grpc error"] = f"{error.status()} {error.message()}"
        assert "board" in {each.name for each in client.get_model_repository_index().models}
        statistics = client.get_inference_statistics("board").model_stats[0]
        assert statistics.inference_stats.success.count >= 11
    return found


if __name__ == "__main__":
    http, grpc, path = sys.argv[1:]
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("x", "edge_index")}
    print(json.dumps(over_http(http, arrays) | over_grpc(grpc, arrays)))
