"""The Open Inference Protocol over gRPC, with Triton's ModelStreamInfer."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from open_inference.grpc import protocol

from adar_runtime import Step
from adar_serve.grpc_extensions import MESSAGES
from adar_serve.grpc_messages import model_metadata, read_request, stream_response, write_answer
from adar_serve.limits import MIB
from adar_serve.messages import Answer, InferRequest
from adar_serve.models import Model
from adar_serve.refusals import CLIENT_GONE, RefusedError
from adar_serve.request_log import request_id
from adar_serve.service import Facts, Service
from adar_serve.tracing import span

SERVICE = "inference.GRPCInferenceService"
SPARE = 16  # calls beside those that run and wait, such as health checks
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CLIENT_GONE: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
UNARY = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelStatistics"),
)
OPEN = ("ServerLive", "ServerReady")  # probes have no token


def grpc_server(service: Service) -> Any:
    """A `grpc.aio` server without a port."""
    limits = service.limits
    server = grpc.aio.server(
        maximum_concurrent_rpcs=limits.concurrent + limits.queue + SPARE,
        options=[
            ("grpc.max_receive_message_length", limits.body * MIB),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(service)),))
    return server


def _handlers(service: Service) -> dict[str, Any]:
    calls = Calls(service)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            calls.guarded(getattr(calls, name)),
            response_serializer=_message(f"{name}Response").SerializeToString,
        )
        for name in UNARY
    }
    stream = grpc.stream_stream_rpc_method_handler(calls.ModelStreamInfer, response_serializer=bytes)
    return handlers | {"ModelStreamInfer": stream}


def _message(name: str) -> Any:
    return MESSAGES[name] if name in MESSAGES else getattr(protocol, name)


def _parsed(name: str, content: bytes) -> Any:
    """The message in the bytes of a request. gRPC would blame the server for bytes that are not one."""
    try:
        return _message(name).FromString(content)
    except DecodeError as error:
        raise RefusedError(400, f"the bytes are not a {name}") from error


class Calls:
    """One method for each call of the service, under the name of the call."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method with token, log and metrics; what it refuses becomes a gRPC status."""

        async def call(content: bytes, context: Any) -> Any:
            facts: Facts = {}
            try:
                with self._recorded(method.__name__, context, facts):
                    return await method(_parsed(f"{method.__name__}Request", content), facts)
            except RefusedError as refused:
                await context.abort(
                    CODES.get(refused.status, grpc.StatusCode.INTERNAL), refused.message, _trailing(refused)
                )

        return call

    async def ServerLive(self, _message: Any, _facts: Facts) -> Any:  # noqa: N802
        return protocol.ServerLiveResponse(live=True)

    async def ServerReady(self, _message: Any, _facts: Facts) -> Any:  # noqa: N802
        return protocol.ServerReadyResponse(ready=not self._service.draining)

    async def ModelReady(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        self._service.models.find(message.name, message.version or None)
        return protocol.ModelReadyResponse(ready=not self._service.draining)

    async def ServerMetadata(self, _message: Any, _facts: Facts) -> Any:  # noqa: N802
        return protocol.ServerMetadataResponse(**self._service.server_metadata())

    async def ModelMetadata(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        models = self._service.models
        return model_metadata(models.metadata(models.find(message.name, message.version or None)))

    async def ModelInfer(self, message: Any, facts: Facts) -> Any:  # noqa: N802
        model = self._service.models.find(message.model_name, message.model_version or None)
        return await self._service.infer(model, lambda: read_request(message), _writer(message), facts)

    async def RepositoryIndex(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        models = self._service.models.index(ready=message.ready)
        return MESSAGES["RepositoryIndexResponse"](models=models)

    async def RepositoryModelLoad(self, message: Any, facts: Facts) -> Any:  # noqa: N802
        self._service.check_control()
        await self._service.reload(message.model_name, facts)
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def RepositoryModelUnload(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        self._service.check_control()
        self._service.unload(message.model_name)
        return MESSAGES["RepositoryModelUnloadResponse"]()

    async def ModelStatistics(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        models = self._service.models.chosen(message.name or None, message.version or None)
        return MESSAGES["ModelStatisticsResponse"](**self._service.statistics.to_dict(models))

    async def ModelStreamInfer(self, contents: Any, context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        """Answer each request of the stream with its steps and, at the end, its outputs."""
        async for content in contents:
            facts: Facts = {}
            try:
                with self._recorded("ModelStreamInfer", context, facts):
                    message = _parsed("ModelInferRequest", content)
                    async for response in self._stream(message, facts):
                        yield stream_response(response)
            except RefusedError as refused:
                yield stream_response(error=refused.message)

    async def _stream(self, message: Any, facts: Facts) -> AsyncIterator[Any]:
        model = self._service.models.find(message.model_name, message.model_version or None)
        steps: asyncio.Queue[Any] = asyncio.Queue()
        loop, raw = asyncio.get_running_loop(), bool(message.raw_input_contents)

        def on_step(step: Step) -> None:
            found = _step_answer(model, message.id, step)
            loop.call_soon_threadsafe(steps.put_nowait, write_answer(found, raw=raw, final=False))

        run = asyncio.create_task(
            self._service.infer(model, lambda: read_request(message), _writer(message), facts, on_step)
        )
        run.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            while (response := await steps.get()) is not None:
                yield response
            yield run.result()
        finally:
            run.cancel()

    @contextmanager
    def _recorded(self, action: str, context: Any, facts: Facts) -> Iterator[None]:
        """Check the token; write the log and count the call."""
        metadata = dict(context.invocation_metadata() or ())
        identity, started, status = request_id(metadata.get("x-request-id")), time.monotonic(), 200
        try:
            with span(f"{SERVICE}/{action}", metadata, facts):
                if action not in OPEN:
                    self._service.tokens.check(metadata.get("authorization"))
                yield
        except RefusedError as refused:
            status = refused.status
            facts.setdefault("reason", refused.message)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            status = CLIENT_GONE
            raise
        except Exception as error:
            status, facts["traceback"] = 500, traceback.format_exc()
            raise RefusedError(500, f"an error on the server: its log has the request {identity}") from error
        finally:
            seconds = time.monotonic() - started
            self._service.metrics.requests.labels("grpc", action, status).inc()
            self._service.metrics.seconds.labels("grpc", action).observe(seconds)
            self._service.log.write(
                "request",
                request_id=identity,
                protocol="grpc",
                method=action,
                status=status,
                seconds=round(seconds, 6),
                **facts,
            )


def _writer(message: Any) -> Callable[[InferRequest, Answer], Any]:
    """Numbers go back as they came: as bytes, or as fields of the message."""
    return lambda _, answer: write_answer(answer, raw=bool(message.raw_input_contents))


def _step_answer(model: Model, id: str, step: Step) -> Answer:
    outputs = {
        "step": np.array([step.index], np.int64),
        "time": np.array([step.time], np.float64),
        "alignment": np.array([step.alignment], np.float64),
    }
    return Answer(model.name, model.version, id, outputs, {})


def _trailing(refused: RefusedError) -> tuple[tuple[str, str], ...]:
    return () if refused.retry_after is None else (("retry-after", str(refused.retry_after)),)
