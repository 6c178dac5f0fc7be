"""The trace context as headers of records."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span
from support.tracing import Traces

from airflow_outbox import OutboxRecord
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.values.trace_context import trace_headers, with_trace_headers


def test_without_a_span_there_are_no_headers(traces: Traces) -> None:
    record = OutboxRecord("t", "k", "v", {"a": "1"})
    assert trace_headers() == {}
    assert with_trace_headers([record]) == [record]


def test_the_current_span_is_the_context(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("stash") as span:
        context = span.get_span_context()
        expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert trace_headers() == {"traceparent": expected}


def test_a_vendors_state_and_a_trace_that_is_not_sampled_are_passed_on() -> None:
    context = SpanContext(1, 2, False, TraceFlags(0), TraceState([("vendor", "x")]))
    with use_span(NonRecordingSpan(context)):
        assert trace_headers() == {
            "traceparent": "00-00000000000000000000000000000001-0000000000000002-00",
            "tracestate": "vendor=x",
        }


def test_each_record_gets_the_context_behind_its_headers_unless_it_has_its_own(traces: Traces) -> None:
    records = [
        OutboxRecord("t", "none", "v"),
        OutboxRecord("t", "mapping", "v", {"a": "1"}),
        OutboxRecord("t", "pairs read once", "v", iter([("a", "1"), ("a", b"2")]), 3),
        OutboxRecord("t", "own", "v", [("traceparent", b"mine"), ("a", "1")]),
        OutboxRecord("t", "own state", "v", iter([("tracestate", "mine")])),
        OutboxRecord("t", "another case", "v", {"Traceparent": "not W3C's name"}),
        OutboxRecord("t", "no pairs", "v", cast("Any", ["a", 1, ()])),
    ]
    with traces.tracer.start_as_current_span("stash"):
        added = list(trace_headers().items())
        traced = with_trace_headers(records)
    assert [record.header_pairs() for record in traced] == [
        added,
        [("a", "1"), *added],
        [("a", "1"), ("a", b"2"), *added],
        [("traceparent", b"mine"), ("a", "1")],
        [("tracestate", "mine")],
        [("Traceparent", "not W3C's name"), *added],
        ["a", 1, (), *added],  # which stash refuses, by name
    ]
    assert [(record.topic, record.key, record.value, record.partition) for record in traced] == [
        (record.topic, record.key, record.value, record.partition) for record in records
    ]


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigurationError, match=r"opentelemetry-api, which is not installed. Run: pip install"):
        trace_headers()
