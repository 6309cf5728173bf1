"""The Open Inference Protocol over gRPC, with Triton's ModelStreamInfer."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from open_inference.grpc import protocol

from adar_runtime import Step
from adar_serve.grpc_extensions import MESSAGES
from adar_serve.grpc_messages import (
    model_metadata,
    parse_message,
    read_request,
    stream_response,
    write_answer,
)
from adar_serve.limits import MIB
from adar_serve.messages import Answer, InferRequest, check_answer
from adar_serve.models import Model
from adar_serve.refusals import CLIENT_GONE, RefusedError, release
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
    *("ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "ModelStatistics"),
)
OPEN = ("ServerLive", "ServerReady")  # probes have no token


def grpc_server(service: Service, *, shares_port: bool = False) -> Any:
    """A `grpc.aio` server without a port. `shares_port`: other processes listen on its port too."""
    limits, calls = service.limits, Calls(service)
    server = grpc.aio.server(
        interceptors=(_TokenFirst(calls),),
        maximum_concurrent_rpcs=limits.concurrent + limits.queue + SPARE,
        options=[
            ("grpc.max_receive_message_length", limits.body * MIB),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(shares_port)),
        ],
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, _handlers(calls)),))
    return server


def _handlers(calls: "Calls") -> dict[str, Any]:
    """The calls by name. Messages arrive as bytes: they are parsed after the token was checked."""
    probes = {
        name: grpc.stream_unary_rpc_method_handler(  # which does not wait for the message
            calls.guarded(getattr(calls, name)),
            response_serializer=_message(f"{name}Response").SerializeToString,
        )
        for name in OPEN
    }
    unary = {
        name: grpc.unary_unary_rpc_method_handler(
            calls.guarded(getattr(calls, name), _message(f"{name}Request")),
            response_serializer=_message(f"{name}Response").SerializeToString,
        )
        for name in UNARY
    }
    stream = grpc.stream_stream_rpc_method_handler(calls.ModelStreamInfer, response_serializer=bytes)
    return probes | unary | {"ModelStreamInfer": stream}


class _TokenFirst(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call without a valid token before its message is received."""

    def __init__(self, calls: "Calls") -> None:
        self._calls = calls

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler, action = await continuation(details), details.method.rpartition("/")[2]
        if handler is None or self._calls.accepts(action, details.invocation_metadata):
            return handler
        # A handler of a stream does not wait for the message, which can be large.
        return grpc.stream_stream_rpc_method_handler(self._calls.refuse(action))


def _message(name: str) -> Any:
    return MESSAGES[name] if name in MESSAGES else getattr(protocol, name)


class Calls:
    """One method for each call of the service, under the name of the call."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def accepts(self, action: str, metadata: Any) -> bool:
        """Whether a call has a valid token, or needs none."""
        try:
            self._check_token(action, metadata)
        except RefusedError:
            return False
        return True

    def _check_token(self, action: str, metadata: Any) -> None:
        if action not in OPEN:
            self._service.tokens.check(dict(metadata or ()).get("authorization"))

    def guarded(self, method: Callable[..., Any], kind: Any = None) -> Callable[..., Any]:
        """The method with token, log and metrics; what it refuses becomes a gRPC status.

        `kind` is the type of the message, which the caller sent as bytes. Without one, it is not read.
        """

        async def call(content: Any, context: Any) -> Any:
            try:
                return await self._answer(method, kind, content, context)
            except RefusedError as error:
                release(error)
                refused = error
            del content
            return await _abort(context, refused)

        return call

    async def _answer(self, method: Callable[..., Any], kind: Any, content: Any, context: Any) -> Any:
        facts: Facts = {}
        with self._recorded(method.__name__, context, facts):
            if kind is None:
                return await method(None, facts)
            with self._service.bodies.counted(len(content)):
                return await method(parse_message(kind, content, self._service.limits), facts)

    def refuse(self, action: str) -> Callable[..., Any]:
        """A call that is recorded and ends with its refusal."""

        async def call(_messages: Any, context: Any) -> None:
            try:
                with self._recorded(action, context, {}):
                    pass
            except RefusedError as refused:
                await _abort(context, refused)

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
        return await self._service.infer(model, lambda: read_request(message), self._writer(message), facts)

    async def RepositoryIndex(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        models = self._service.models.index(ready=message.ready)
        return MESSAGES["RepositoryIndexResponse"](models=models)

    async def RepositoryModelLoad(self, message: Any, facts: Facts) -> Any:  # noqa: N802
        self._service.check_control()
        await self._service.reload(message.model_name, facts)
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def RepositoryModelUnload(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        self._service.check_control()
        await self._service.unload(message.model_name)
        return MESSAGES["RepositoryModelUnloadResponse"]()

    async def ModelStatistics(self, message: Any, _facts: Facts) -> Any:  # noqa: N802
        models = self._service.models.chosen(message.name or None, message.version or None)
        return MESSAGES["ModelStatisticsResponse"](**await self._service.model_statistics(models))

    async def ModelStreamInfer(self, messages: Any, context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        """Answer each request of the stream with its steps and, at the end, its outputs."""
        limits = self._service.limits
        while True:
            try:
                async with asyncio.timeout(limits.seconds):
                    content = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:  # an idle stream would keep one of the calls that the server allows
                yield stream_response(error=f"no request in {limits.seconds} seconds: open a new stream")
                return
            async for response in self._responses(content, context):
                yield response
            del content, response  # the stream may wait for its next request now

    async def _responses(self, content: bytes, context: Any) -> AsyncIterator[bytes]:
        """The steps and the answer of one request, or its error."""
        facts: Facts = {}
        try:
            with (
                self._recorded("ModelStreamInfer", context, facts),
                self._service.bodies.counted(len(content)),
            ):
                async for response in self._stream(content, facts):
                    yield stream_response(response)
        except RefusedError as refused:
            release(refused)
            yield stream_response(error=refused.message)

    async def _stream(self, content: bytes, facts: Facts) -> AsyncIterator[Any]:
        message = parse_message(protocol.ModelInferRequest, content, self._service.limits)
        model = self._service.models.find(message.model_name, message.model_version or None)
        steps: asyncio.Queue[Any] = asyncio.Queue()
        loop, raw = asyncio.get_running_loop(), bool(message.raw_input_contents)

        def on_step(step: Step) -> None:
            found = _step_answer(model, message.id, step)
            loop.call_soon_threadsafe(steps.put_nowait, write_answer(found, raw=raw, final=False))

        run = asyncio.create_task(
            self._service.infer(model, lambda: read_request(message), self._writer(message), facts, on_step)
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
        metadata = context.invocation_metadata()
        identity = request_id(dict(metadata or ()).get("x-request-id"))
        started, status = time.monotonic(), 200
        try:
            with span(f"{SERVICE}/{action}", dict(metadata or ()), facts):
                self._check_token(action, metadata)
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
            self._service.metrics.count_request("grpc", action, status, seconds)
            self._service.log.write(
                "request",
                request_id=identity,
                protocol="grpc",
                method=action,
                status=status,
                seconds=round(seconds, 6),
                **facts,
            )

    def _writer(self, message: Any) -> Callable[[InferRequest, Answer], Any]:
        """Numbers go back as they came: as bytes, or as fields of the message."""
        raw = bool(message.raw_input_contents)

        def write(_: InferRequest, answer: Answer) -> Any:
            if not raw:
                check_answer(answer.outputs.values(), self._service.limits)
            return write_answer(answer, raw=raw)

        return write


async def _abort(context: Any, refused: RefusedError) -> None:
    code = CODES.get(refused.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, refused.message, _trailing(refused))


def _step_answer(model: Model, id: str, step: Step) -> Answer:
    outputs = {
        "step": np.array([step.index], np.int64),
        "time": np.array([step.time], np.float64),
        "alignment": np.array([step.alignment], np.float64),
    }
    return Answer(model.name, model.version, id, outputs, {})


def _trailing(refused: RefusedError) -> tuple[tuple[str, str], ...]:
    return () if refused.retry_after is None else (("retry-after", str(refused.retry_after)),)
