"""Spans of OpenTelemetry where it is installed: the trace of a request goes on (W3C trace context)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

try:
    from opentelemetry import propagate, trace
except ImportError:  # not an extra: services that use it have it
    is_installed = False
else:
    is_installed = True


TRACEPARENT = "traceparent"


def _is_configured() -> bool:
    """Whether spans go somewhere; else only the trace of a client matters, for the log."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def span(name: str, headers: Mapping[str, str], facts: dict[str, Any]) -> Iterator[None]:
    """A span around a request. It gets the facts of the request as attributes; the log gets its trace id."""
    if not is_installed or (TRACEPARENT not in headers and not _is_configured()):
        yield
        return
    # Not the current span: the generators of streams run in several contexts.
    started = trace.get_tracer("adar_serve").start_span(
        name, propagate.extract(headers), kind=trace.SpanKind.SERVER
    )
    found = started.get_span_context()
    if found.is_valid:
        facts["trace_id"] = trace.format_trace_id(found.trace_id)
    try:
        yield
    finally:
        for key, value in facts.items():
            if isinstance(value, str | int | float):
                started.set_attribute(f"adar.{key}", value)
        started.end()
