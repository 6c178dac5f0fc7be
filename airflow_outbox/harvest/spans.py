"""Spans around the engine's ports. Only a process that traces loads this module.

- *send*: a batch. Exactly once, it lasts from the first record handed to Kafka until the commit is acknowledged; at
  least once, it is the records whose delivery reports came together.
- *take over*: from the fence in Postgres until the new leader looks for records.
- *park*: records are set aside.

A span links to the trace contexts of its records. It is the root of a trace of its own, since its records belong to
many traces. Names and attributes follow OpenTelemetry's conventions for messaging. So does the kind of *send*: the
records carry the contexts in which they were created, and not this span's, so it is a CLIENT's and not a PRODUCER's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, Unpack, cast
from uuid import UUID

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from airflow_outbox.errors import KafkaError, OutboxError
from airflow_outbox.harvest.ports import Delivery, Events, Log, Table, TransactionalLog
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord, Parked, expanded
from airflow_outbox.harvest.protocol.parking import refusals_of
from airflow_outbox.values.fence import Fence, Purged
from airflow_outbox.values.pages import (
    HEADER_NAMES,
    HEADER_VALUES,
    ID,
    TOPIC,
    OutboxRow,
    Page,
    PageBounds,
    PageSnapshot,
)
from airflow_outbox.values.records import MarkedRecord, Snapshot
from airflow_outbox.values.trace_context import TRACEPARENT

MOST_LINKS: Final = 128
"""Links of one span; OpenTelemetry's own limit, unless OTEL_SPAN_LINK_COUNT_LIMIT lowers it."""

_LONGEST_CONTEXT: Final = 512  # a longer one is none, and OpenTelemetry would warn of each

Context = str
"""A record's `traceparent`, as it stands in its headers. Its `tracestate` is not looked at: a link needs none."""

Port = TypeVar("Port")

_propagator = TraceContextTextMapPropagator()
_ENDS_OF_A_TERM = frozenset({"error", "fenced", "resigned", "stood_by"})


def contexts(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Context]]:
    """The ids of those rows that carry a trace context, each with the context. A row may hold anything."""
    for row in rows:
        names = row[HEADER_NAMES]
        if names and TRACEPARENT in names:
            place, values = names.index(TRACEPARENT), row[HEADER_VALUES] or ()
            value = values[place] if place < len(values) else None
            context = value.decode("latin-1") if isinstance(value, bytes) else value
            if isinstance(context, str) and 0 < len(context) <= _LONGEST_CONTEXT:
                yield row[ID], context


def links(found: Iterable[Context], attributes: Mapping[Context, Mapping[str, str]] | None = None) -> list[Link]:
    """Links to the first trace contexts, at most `MOST_LINKS`. Invalid contexts are skipped."""
    made: list[Link] = []
    for context in found:
        span_context = get_current_span(_propagator.extract({TRACEPARENT: context})).get_span_context()
        if span_context.is_valid:
            made.append(Link(span_context, (attributes or {}).get(context)))
            if len(made) == MOST_LINKS:
                break
    return made


@dataclass(slots=True)
class Sent:
    """Records that were sent together: when it began (as time.time_ns), how many, to which topics, in which traces."""

    began: int = field(default_factory=time.time_ns)
    records: int = 0
    topics: set[str] = field(default_factory=set)
    contexts: dict[Context, None] = field(default_factory=dict)
    error: BaseException | None = None

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows or marked records."""
        self.records += len(rows)
        self.topics.update(row[TOPIC] for row in rows)
        self.contexts.update((context, None) for _, context in contexts(rows))


class Spans:
    """Makes the spans of one member of an outbox."""

    def __init__(self, tracer: Tracer, *, outbox: str) -> None:
        self._tracer = tracer
        self._outbox = outbox
        self._take_over: Span | None = None

    def send(self, sent: Sent) -> None:
        """Records were sent, or not: then they have an error."""
        attributes: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": sent.records,
            "outbox.name": self._outbox,
            "outbox.batch.contexts": len(sent.contexts),
        }
        name = "send"
        if len(sent.topics) == 1:
            [topic] = sent.topics
            attributes["messaging.destination.name"] = topic
            name = f"send {topic}"
        if sent.error is not None:
            attributes["error.type"] = type(sent.error).__qualname__
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, links=links(sent.contexts), start_time=sent.began
        )
        if sent.error is not None:
            span.set_status(Status(StatusCode.ERROR, str(sent.error)))
        span.end()

    def begin_take_over(self, view: UUID) -> None:
        """A view takes over."""
        self.fail_take_over("another view began")
        attributes = {"outbox.name": self._outbox, "outbox.view": str(view)}
        self._take_over = self._tracer.start_span("take over", attributes=attributes)

    def note(self, event: str) -> None:
        """A step of the take-over is done."""
        if self._take_over is not None:
            self._take_over.add_event(event)

    def end_take_over(self) -> None:
        """The new leader looks for records."""
        if self._take_over is not None:
            self._take_over.end()
            self._take_over = None

    def fail_take_over(self, reason: str) -> None:
        """The take-over has failed, if one is under way."""
        if self._take_over is not None:
            self._take_over.set_status(Status(StatusCode.ERROR, reason))
            self.end_take_over()

    def park(self, parked: Sequence[Parked], known: Mapping[int, Context]) -> Span:
        """Begin the span of parking; `known` are the trace contexts of records in the outbox, by id."""
        refusals = refusals_of(parked)
        attributes: dict[Context, Mapping[str, str]] = {}
        for identity, refusal in sorted(refusals.items(), key=lambda each: each[1] is None):  # the refused ones first
            if identity in known:
                attributes.setdefault(known[identity], {"outbox.cause": refusal.cause.value if refusal else "waiting"})
        reasons = [refusal for refusal in refusals.values() if refusal is not None]
        span = self._tracer.start_span(
            "park",
            attributes={
                "outbox.name": self._outbox,
                "outbox.refused": len(reasons),
                "outbox.waiting": len(refusals) - len(reasons),
                "outbox.causes": sorted({refusal.cause.value for refusal in reasons}),
            },
            links=links(attributes, attributes),
        )
        if reasons:
            span.set_status(Status(StatusCode.ERROR, reasons[0].reason))
        return span

    def close(self) -> None:
        """End what is under way."""
        self.fail_take_over("the process ended")


class _Around(Generic[Port]):
    """A port with spans. All that is not overridden goes to the port itself."""

    def __init__(self, port: Port, spans: Spans) -> None:
        self._port = port
        self._spans = spans

    @classmethod
    def around(cls, port: Port, spans: Spans) -> Port:
        return cast("Port", cls(port, spans))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class TracedTable(_Around[Table]):
    """A table with spans of take-overs and parking. It remembers the trace contexts of the records in flight."""

    def __init__(self, port: Table, spans: Spans) -> None:
        super().__init__(port, spans)
        self._contexts: dict[int, Context] = {}

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        self._contexts.clear()
        self._spans.begin_take_over(view)
        fence = await self._port.take_over(view, after=after)
        self._spans.note("fenced in Postgres")
        return fence

    async def read(self, reading: PageSnapshot, *, wait: float = 0.0, **bounds: Unpack[PageBounds]) -> Page:
        self._spans.end_take_over()
        page = await self._port.read(reading, wait=wait, **bounds)
        self._remember(page.rows)
        return page

    async def mark(self, view: UUID, **bounds: Any) -> list[MarkedRecord]:
        self._spans.end_take_over()
        records = await self._port.mark(view, **bounds)
        self._remember(records)
        return records

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        with use_span(self._spans.park(parked, self._contexts), end_on_exit=True):
            await self._port.park(view, parked, snapshot)
        for group in parked:
            self._forget(expanded(group.runs))

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **told: Any) -> Purged:
        purged = await self._port.purge_published(view, ids, snapshot, **told)
        self._forget(ids)
        return purged

    async def purge(self, view: UUID, ids: Sequence[int]) -> float | None:
        age = await self._port.purge(view, ids)
        self._forget(ids)
        return age

    def _remember(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._contexts.update(contexts(rows))

    def _forget(self, ids: Iterable[int]) -> None:
        for identity in ids if self._contexts else ():
            self._contexts.pop(identity, None)


class TracedTransactionalLog(_Around[TransactionalLog]):
    """A log with a span of each transaction that has records, and with notes of a take-over's steps."""

    def __init__(self, port: TransactionalLog, spans: Spans) -> None:
        super().__init__(port, spans)
        self._open: deque[Sent] = deque()  # one for each transaction that is begun and not committed, in their order

    async def fence(self, others: Collection[str] = ()) -> None:
        await self._port.fence(others)
        self._spans.note("fenced in Kafka")

    async def ledger(self, start: int) -> Ledger:
        ledger = await self._port.ledger(start)
        self._spans.note("read the ledger")
        return ledger

    async def begin(self) -> bool:
        is_new_epoch = await self._port.begin()
        self._open.append(Sent())
        return is_new_epoch

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        sent = self._open[-1]
        sent.add(rows)
        try:
            return await self._port.publish(rows, partitions)
        except OutboxError as error:
            sent.error = error
            raise

    async def write(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> None:
        with self._noting():
            await self._port.write(records, entry=entry)

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        with self._noting():
            offset = await self._port.commit(records, entry=entry)
        self._end(self._open.popleft())
        return offset

    async def close(self) -> None:
        await self._port.close()
        for sent in self._open:
            sent.error = sent.error or KafkaError("the term ended before the commit; the next one sends the records")
            self._end(sent)
        self._open.clear()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note the error that ends the first open transaction."""
        try:
            yield
        except OutboxError as error:
            self._open[0].error = error
            raise

    def _end(self, sent: Sent) -> None:
        if sent.records:
            self._spans.send(sent)


class TracedLog(_Around[Log]):
    """A log with a span of the records whose delivery reports come together."""

    def __init__(self, port: Log, spans: Spans) -> None:
        super().__init__(port, spans)
        # By the identity of the record, since a parked one may have another's id; with the time.
        self._unreported: dict[int, tuple[MarkedRecord, int]] = {}

    def send(self, record: MarkedRecord) -> None:
        self._unreported[id(record)] = record, time.time_ns()
        self._port.send(record)

    async def deliveries(self) -> Sequence[Delivery]:
        deliveries = await self._port.deliveries()
        if deliveries:
            error = next((delivery.error for delivery in deliveries if delivery.error is not None), None)
            self._end([id(delivery.record) for delivery in deliveries], error)
        return deliveries

    async def close(self) -> None:
        await self._port.close()
        if self._unreported:
            error = KafkaError("the term ended before the reports; the next one sends the records, perhaps again")
            self._end([*self._unreported], error)

    def _end(self, identities: Iterable[int], error: OutboxError | None) -> None:
        records, times = zip(*map(self._unreported.pop, identities), strict=True)
        sent = Sent(min(times), error=error)
        sent.add(records)
        self._spans.send(sent)


class TracedEvents:
    """The engine's events. Those that end a term end the span of a take-over that was under way."""

    def __init__(self, events: Events, spans: Spans) -> None:
        self._events = events
        self._spans = spans

    def __call__(self, event: str, /, **fields: object) -> None:
        if event in _ENDS_OF_A_TERM:
            self._spans.fail_take_over(str(fields.get("error") or fields.get("reason") or event))
        self._events(event, **fields)
