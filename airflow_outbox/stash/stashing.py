"""stash() and astash(): the same two questions, over connections that block and over asynchronous ones."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID
from weakref import WeakKeyDictionary

from airflow_outbox.errors import AutocommitError, AutocommitWarning, OutboxMissingError
from airflow_outbox.postgres.columns import Column, column_types
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed
from airflow_outbox.stash.adapters import ConnectionAdapter, Question, Rows, adapter_of, async_adapter_of
from airflow_outbox.stash.encoding import encoded_record
from airflow_outbox.values.records import OutboxRecord, Ticket
from airflow_outbox.values.trace_context import with_trace_headers

if TYPE_CHECKING:
    from airflow_outbox.stash.adapters import AsyncConnectable, Connectable

Autocommit = Literal["warn", "refuse", "allow"]

_AUTOCOMMIT = (
    "stash() on a connection that commits each statement by itself: the records are committed whatever happens to the "
    "business rows. Open a transaction around both"
)
_known_columns: WeakKeyDictionary[Any, dict[OutboxName, Mapping[str, Column]]] = WeakKeyDictionary()


def stash(
    connection: Connectable,
    records: OutboxRecord | Iterable[OutboxRecord],
    *,
    outbox: str = "outbox",
    tracing: bool = False,
    autocommit: Autocommit = "warn",
) -> Ticket:
    """Write one record or many into `outbox` (`table` or `schema.table`) in the caller's transaction.

    `connection` is a psycopg connection; a SQLAlchemy connection or session over psycopg or psycopg2; or a connection
    of Django, such as `django.db.connection`. Nothing is committed here. With `tracing`, each record gets the caller's
    OpenTelemetry context as the header `traceparent` (and `tracestate`), unless it has one. `autocommit` says what to
    do where no transaction is open and each statement commits by itself: `warn` (once for each place in the caller's
    code, as Python's warnings do), `refuse` or `allow`. Returns the ticket of the transaction.

    Raises InvalidRecordError, before anything is written, for a record that Kafka or the table can't take;
    OutboxMissingError when there is no outbox; UnsupportedConnectionError; AutocommitError, before anything is written;
    ConfigurationError for `tracing` without OpenTelemetry; and the driver's own errors when Postgres refuses.
    """
    adapter = adapter_of(connection)
    _mind_autocommit(adapter, autocommit)
    steps = _steps(adapter.owner, records, OutboxName.parse(outbox), tracing=tracing)
    try:
        question = next(steps)
        while True:
            question = steps.send(adapter.ask(question))
    except StopIteration as end:
        return _ticket(end)


async def astash(
    connection: AsyncConnectable,
    records: OutboxRecord | Iterable[OutboxRecord],
    *,
    outbox: str = "outbox",
    tracing: bool = False,
    autocommit: Autocommit = "warn",
) -> Ticket:
    """Do what `stash` does, over an asynchronous connection: `ticket = await astash(connection, records)`.

    `connection` is psycopg's AsyncConnection; a connection of asyncpg, also one that its pool lends; or SQLAlchemy's
    AsyncConnection or AsyncSession over psycopg or asyncpg. With asyncpg each statement commits by itself, unless
    `connection.transaction()` is open.

    Raises what `stash` raises.
    """
    if hasattr(connection, "run_sync"):  # SQLAlchemy's: it runs the blocking code, and awaits where that would block
        ticket: Ticket = await connection.run_sync(
            lambda lent: stash(lent, records, outbox=outbox, tracing=tracing, autocommit=autocommit)
        )
        return ticket
    adapter = async_adapter_of(connection)
    _mind_autocommit(adapter, autocommit)
    steps = _steps(adapter.owner, records, OutboxName.parse(outbox), tracing=tracing)
    try:
        question = next(steps)
        while True:
            question = steps.send(await adapter.ask(question))
    except StopIteration as end:
        return _ticket(end)


def _mind_autocommit(adapter: ConnectionAdapter[Any], autocommit: Autocommit) -> None:
    if not adapter.commits_by_itself or autocommit == "allow":
        return
    if autocommit == "refuse":
        raise AutocommitError
    warnings.warn(f"{_AUTOCOMMIT}, or give autocommit='allow'", AutocommitWarning, stacklevel=3)


def _steps(
    owner: Any, records: OutboxRecord | Iterable[OutboxRecord], name: OutboxName, *, tracing: bool
) -> Generator[Question, Rows, Rows]:
    """The questions of one call; each is sent its answer. Returns the last one, in which the ticket is."""
    known = _known_columns.setdefault(owner, {})
    if name not in known:
        found = yield Question(composed("connection.columns").as_string(None), "table", name.text())
        if not found:
            raise OutboxMissingError(
                f"there is no table {name} on the search path. Run `airflow-outbox init`, or name its schema"
            )
        known[name] = {column: Column(kind, max_length) for column, kind, max_length in found}
    columns = known[name]
    batch = [records] if isinstance(records, OutboxRecord) else list(records)
    if tracing:
        batch = with_trace_headers(batch)
    rows = [encoded_record(place, record, columns) for place, record in enumerate(batch)]
    statement = "stash_with_partition" if "kafka_partition" in columns else "stash"
    query = composed(f"stash.{statement}", name, **column_types(columns)).as_string(None)
    tickets = yield Question(query, "records", json.dumps(rows, separators=(",", ":")))
    if not tickets:
        raise OutboxMissingError(f"{name.text('state')} is empty. Roll back and run `airflow-outbox init`")
    return tickets


def _ticket(end: StopIteration) -> Ticket:
    outbox_id, incarnation, transaction_id = end.value[0]
    return Ticket(UUID(outbox_id), incarnation, int(transaction_id))
