"""The spans around the engine's ports, which are fakes here. Real ones are in tests/integration/test_traces.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from support.tracing import Traces, linked

from airflow_outbox.errors import KafkaError, OutboxError, PublishError, RecordsRefusedError
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.protocol.ledger import Parked
from airflow_outbox.harvest.spans import (
    MOST_LINKS,
    Spans,
    TracedEvents,
    TracedLog,
    TracedTable,
    TracedTransactionalLog,
)
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import MarkedRecord

VIEW = UUID(int=7)


def traceparent(number: int) -> str:
    """The context of the span `number` in the trace `number`."""
    return f"00-{number:032x}-{number:016x}-01"


def row(number: int, *headers: tuple[str, str | bytes | None], topic: str = "orders") -> OutboxRow:
    names, values = [name for name, _ in headers], [value for _, value in headers]
    return (number, topic, "k", "v", list(names), list(values), None, 1, None)


def traced(number: int, *, trace: int | None = None, topic: str = "orders") -> OutboxRow:
    return row(number, ("a", "1"), ("traceparent", traceparent(trace or number)), topic=topic)


@pytest.fixture
def spans(traces: Traces) -> Spans:
    return Spans(traces.tracer, outbox="shop.outbox")


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def sent(spans: Spans, rows: Sequence[OutboxRow]) -> None:
    log = TracedTransactionalLog.around(AsyncMock(), spans)
    await log.begin()
    await log.publish(rows)
    await log.commit([])


async def test_a_transaction_is_a_span_that_links_to_its_records_contexts(traces: Traces, spans: Spans) -> None:
    await sent(spans, [traced(1), traced(2), traced(3, trace=1), row(4), row(5, ("a", "1"))])
    [span] = traces.ended("")
    assert (span.name, span.kind, span.parent) == ("send orders", SpanKind.CLIENT, None)
    assert linked(span) == [(1, 1), (2, 2)]
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 5,
        "messaging.destination.name": "orders",
        "outbox.name": "shop.outbox",
        "outbox.batch.contexts": 2,
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_several_topics_have_no_common_name(traces: Traces, spans: Spans) -> None:
    await sent(spans, [traced(1), traced(2, topic="payments")])
    [span] = traces.ended("")
    assert span.name == "send"
    assert "messaging.destination.name" not in attributes(span)


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", None)],
        [("traceparent", "")],
        [("traceparent", b"\xff\x00")],
        [("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01")],
        [("traceparent", "x" * 100_000)],
        [("tracestate", "vendor=x")],
        [("Traceparent", traceparent(1))],
    ],
    ids=lambda headers: f"{headers[0][0]}: {str(headers[0][1])[:20]}",
)
async def test_what_is_no_context_gets_no_link(traces: Traces, spans: Spans, headers: list[Any]) -> None:
    await sent(spans, [row(1, *headers), traced(2)])
    [span] = traces.ended("")
    assert linked(span) == [(2, 2)]


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (["a", "traceparent"], ["1"]),
        (["traceparent"], []),
        (["traceparent"], None),
        (["traceparent"], [["nested"]]),
        ([["traceparent", "a"]], [["x", "y"]]),
        ([None, b"traceparent"], [None, b"x"]),
        (None, None),
    ],
)
async def test_headers_that_no_client_takes_stop_nothing(traces: Traces, spans: Spans, names: Any, values: Any) -> None:
    odd = (1, "orders", "k", "v", names, values, None, 1, None)
    await sent(spans, [odd, traced(2)])
    assert [linked(span) for span in traces.ended("")] == [[(2, 2)]]
    port = AsyncMock()
    port.read.return_value.rows = [odd]
    table = TracedTable.around(port, spans)
    await table.read(cast("Any", None), max_records=9, max_bytes=9, transaction_ids=False)
    await table.park(VIEW, [Parked("headers", "not as many values as names", ((1, 1),))], None)
    assert linked(traces.ended("park")[0]) == []


async def test_what_a_writer_calls_a_context_is_never_logged(
    traces: Traces, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = "\x1b[2J" * 1000
    await sent(spans, [row(1, ("tracestate", hostile), ("traceparent", traceparent(1).encode()))])
    await sent(spans, [row(2, ("traceparent", hostile))])
    assert [linked(span) for span in traces.ended("")] == [[(1, 1)], []]
    assert caplog.records == []


async def test_links_are_bounded(traces: Traces, spans: Spans) -> None:
    await sent(spans, [traced(number) for number in range(1, 1001)])
    [span] = traces.ended("")
    assert linked(span) == [(number, number) for number in range(1, MOST_LINKS + 1)]
    assert attributes(span)["outbox.batch.contexts"] == 1000


async def test_what_is_no_context_takes_no_links_place(traces: Traces, spans: Spans) -> None:
    await sent(spans, [*(row(number, ("traceparent", f"none {number}")) for number in range(1000)), traced(2000)])
    [span] = traces.ended("")
    assert linked(span) == [(2000, 2000)]


async def test_transactions_overlap_and_end_in_their_order(traces: Traces, spans: Spans) -> None:
    log = TracedTransactionalLog.around(AsyncMock(), spans)
    await log.begin()
    await log.publish([traced(1)])
    await log.begin()
    await log.publish([traced(2)])
    await log.publish([traced(3)])
    await log.commit([])
    assert [linked(span) for span in traces.ended("")] == [[(1, 1)]]
    await log.commit([])
    assert [linked(span) for span in traces.ended("")] == [[(1, 1)], [(2, 2), (3, 3)]]
    first, second = traces.ended("")
    assert second.start_time is not None
    assert first.end_time is not None
    assert second.start_time < first.end_time


async def test_a_transaction_without_records_is_no_span(traces: Traces, spans: Spans) -> None:
    log = TracedTransactionalLog.around(AsyncMock(), spans)
    for _ in range(2):
        await log.begin()
    await log.commit([])
    await log.close()
    assert traces.ended("") == []


async def test_a_transaction_that_fails_is_a_span_with_its_error(traces: Traces, spans: Spans) -> None:
    async def failing(method: str, error: OutboxError) -> ReadableSpan:
        port = AsyncMock()
        getattr(port, method).side_effect = error
        log = TracedTransactionalLog.around(port, spans)

        async def send() -> None:
            await log.begin()
            await log.publish([traced(1)])
            await log.commit([])

        with pytest.raises(type(error)):
            await send()
        await log.close()
        port.close.assert_awaited_once()
        return traces.ended("")[-1]

    refused = await failing("publish", RecordsRefusedError("too large", records=[1], explained=False))
    assert (refused.status.status_code, refused.status.description) == (StatusCode.ERROR, "too large")
    assert attributes(refused)["error.type"] == "RecordsRefusedError"
    assert linked(refused) == [(1, 1)]
    assert attributes(await failing("commit", KafkaError("no broker")))["error.type"] == "KafkaError"
    assert len(traces.ended("")) == 2


async def test_a_transaction_that_a_term_leaves_is_a_span_with_an_error(traces: Traces, spans: Spans) -> None:
    log = TracedTransactionalLog.around(AsyncMock(), spans)
    await log.begin()
    await log.publish([traced(1)])
    await log.close()
    [span] = traces.ended("")
    assert span.status.status_code is StatusCode.ERROR
    assert "ended before the commit" in str(span.status.description)


async def test_what_is_not_traced_goes_to_the_port_itself(spans: Spans) -> None:
    port = AsyncMock(readable=3)
    log = TracedTransactionalLog.around(port, spans)
    assert log.readable == 3
    assert await log.examine([], again=True) is port.examine.return_value
    port.examine.assert_awaited_once_with([], again=True)


async def test_at_least_once_the_records_reported_together_are_a_span(traces: Traces, spans: Spans) -> None:
    records = [MarkedRecord(*traced(number)[:7]) for number in (1, 2, 3)]
    port = Mock()
    log = TracedLog.around(port, spans)
    for record in records:
        log.send(record)
    failed = Delivery(records[2], PublishError("no broker"))
    port.deliveries = AsyncMock(side_effect=[[Delivery(record, None) for record in records[:2]], [], [failed]])
    for _ in range(3):
        await log.deliveries()
    delivered, undelivered = traces.ended("")
    assert (delivered.name, linked(delivered), delivered.status.status_code) == (
        "send orders",
        [(1, 1), (2, 2)],
        StatusCode.UNSET,
    )
    assert (linked(undelivered), undelivered.status.description) == ([(3, 3)], "no broker")
    port.close = AsyncMock()
    await log.close()
    assert len(traces.ended("")) == 2


async def test_at_least_once_records_without_a_report_are_a_span_with_an_error(traces: Traces, spans: Spans) -> None:
    log = TracedLog.around(Mock(close=AsyncMock()), spans)
    log.send(MarkedRecord(*traced(1)[:7]))
    await log.close()
    [span] = traces.ended("")
    assert linked(span) == [(1, 1)]
    assert "ended before the reports" in str(span.status.description)


async def test_a_take_over_lasts_until_records_are_looked_for(traces: Traces, spans: Spans) -> None:
    table = TracedTable.around(AsyncMock(), spans)
    log = TracedTransactionalLog.around(AsyncMock(), spans)
    await table.take_over(VIEW)
    await log.fence([])
    await log.ledger(0)
    assert traces.ended("") == []
    for _ in range(2):
        await table.read(cast("Any", None), max_records=1, max_bytes=1, transaction_ids=False)
    [span] = traces.ended("")
    assert (span.name, span.status.status_code) == ("take over", StatusCode.UNSET)
    assert attributes(span) == {"outbox.name": "shop.outbox", "outbox.view": str(VIEW)}
    assert [event.name for event in span.events] == ["fenced in Postgres", "fenced in Kafka", "read the ledger"]


@pytest.mark.parametrize(
    ("event", "fields", "reason"),
    [
        ("error", {"error": "no broker", "retry_in": 1}, "no broker"),
        ("fenced", {"view": "v"}, "fenced"),
        ("stood_by", {"reason": "the group has rebalanced"}, "the group has rebalanced"),
    ],
)
async def test_a_take_over_that_fails_says_why(
    traces: Traces, spans: Spans, event: str, fields: dict[str, Any], reason: str
) -> None:
    table, told = TracedTable.around(AsyncMock(), spans), Mock()
    await table.take_over(VIEW)
    TracedEvents(told, spans)(event, **fields)
    told.assert_called_once_with(event, **fields)
    [span] = traces.ended("")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, reason)


async def test_no_take_over_is_left_open(traces: Traces, spans: Spans) -> None:
    table = TracedTable.around(AsyncMock(), spans)
    TracedEvents(Mock(), spans)("error", error="before any")
    await table.take_over(VIEW)
    await table.take_over(UUID(int=8))
    spans.close()
    spans.close()
    assert [span.status.description for span in traces.ended("")] == ["another view began", "the process ended"]


async def test_parking_links_to_the_parked_records(traces: Traces, spans: Spans) -> None:
    port = AsyncMock()
    table = TracedTable.around(port, spans)
    port.read.return_value.rows = [traced(number) for number in range(1, 7)]
    await table.read(cast("Any", None), max_records=9, max_bytes=9, transaction_ids=False)
    await table.purge_published(VIEW, [6], cast("Any", None))
    parked = [Parked(None, None, ((2, 2), (5, 6))), Parked("too_large", "2 MB", ((4, 4),))]
    await table.park(VIEW, parked, None)
    port.park.assert_awaited_once_with(VIEW, parked, None)
    [span] = traces.ended("park")
    assert linked(span) == [(4, 4), (2, 2), (5, 5)]  # the sixth was published long ago
    assert [dict(link.attributes or {}) for link in span.links] == [
        {"outbox.cause": "too_large"},
        {"outbox.cause": "waiting"},
        {"outbox.cause": "waiting"},
    ]
    assert attributes(span) == {
        "outbox.name": "shop.outbox",
        "outbox.refused": 1,
        "outbox.waiting": 3,
        "outbox.causes": ("too_large",),
    }
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "2 MB")
    await table.park(VIEW, parked, None)  # as a recovery does with what it has not read
    assert linked(traces.ended("park")[1]) == []


async def test_a_table_forgets_what_has_left_it(spans: Spans) -> None:
    port = AsyncMock()
    table = cast("Any", TracedTable.around(port, spans))
    port.mark.return_value = [MarkedRecord(*traced(number)[:7]) for number in range(1, 5)]
    await table.mark(VIEW, max_records=9, max_bytes=9)
    await table.purge(VIEW, [1, 2])
    await table.park(VIEW, [Parked(None, None, ((3, 3),))], None)
    assert set(table._contexts) == {4}
    await table.take_over(VIEW)
    assert table._contexts == {}
