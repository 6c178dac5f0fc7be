"""The trace context of a record: the headers `traceparent` and `tracestate`, as W3C's Trace Context defines them.

OpenTelemetry's modules are imported inside functions: a process that traces nothing never loads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.values.records import OutboxRecord

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"


def require_opentelemetry() -> None:
    """Raise ConfigurationError unless OpenTelemetry's API is installed."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "tracing needs the package opentelemetry-api, which is not installed. Run: pip install "
            "'airflow-outbox[tracing]', or turn tracing off"
        ) from error


def trace_headers() -> dict[str, str]:
    """The caller's OpenTelemetry context as headers of a record: `traceparent` and, if there is one, `tracestate`.

    Empty where no span is current. Raises ConfigurationError when OpenTelemetry's API is not installed.
    """
    require_opentelemetry()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def with_trace_headers(records: Iterable[OutboxRecord]) -> list[OutboxRecord]:
    """The records with the caller's trace context among their headers. One that has a header of these names keeps its
    own. Raises ConfigurationError when OpenTelemetry's API is not installed.
    """
    context = trace_headers().items()

    def traced(record: OutboxRecord) -> OutboxRecord:
        pairs = record.header_pairs()
        # Anything but a pair is refused later, by name.
        has_own = any(isinstance(pair, tuple) and pair[:1] in ((TRACEPARENT,), (TRACESTATE,)) for pair in pairs)
        return replace(record, headers=pairs if has_own else [*pairs, *context])

    return [traced(record) for record in records] if context else list(records)
