"""Spans in memory, for tests of what is traced and of what is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from confluent_kafka import Message
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


@dataclass(frozen=True, slots=True)
class Traces:
    """The spans that a test's own tracer provider has kept."""

    provider: TracerProvider
    exporter: InMemorySpanExporter

    @classmethod
    def begin(cls, monkeypatch: pytest.MonkeyPatch) -> Traces:
        """Make a provider the process's one, until the test ends."""
        provider, exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        return cls(provider, exporter)

    @property
    def tracer(self) -> Tracer:
        """For the spans of the test itself."""
        return self.provider.get_tracer("tests")

    def ended(self, name: str) -> list[ReadableSpan]:
        """The ended spans whose names begin like that."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]


W3C = ("traceparent", "tracestate")


def consume(message: Message, tracer: Tracer) -> SpanContext:
    """Go on with a message's trace, as a consumer does: the context of the span in which it is processed."""
    carrier = {name: value.decode() for name, value in message.headers() or () if name in W3C and value}
    parent = TraceContextTextMapPropagator().extract(carrier)
    with tracer.start_as_current_span("process", context=parent) as span:
        return span.get_span_context()


def linked(span: ReadableSpan) -> Sequence[tuple[int, int]]:
    """The trace and the span of each link."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OpenTelemetry collector: where it listens, and the resource spans that it was sent."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def exporting(endpoint: str) -> dict[str, str]:
    """OpenTelemetry's variables, as a user of OTLP over HTTP sets them."""
    return {
        "OTEL_SERVICE_NAME": "orders-harvest",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
