"""OutboxStashOperator: a few records, and business rows with them, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psycopg
from airflow.providers.common.compat.sdk import BaseOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.pq import TransactionStatus

from airflow_outbox.errors import InvalidRecordError, PostgresError
from airflow_outbox.hooks import lineage
from airflow_outbox.hooks.commit_id import commit_id
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.postgres.commits import enter_commit, find_commit
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.stash import stash
from airflow_outbox.values.records import OutboxRecord

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context
    from airflow.providers.openlineage.extractors import OperatorLineage

_FIELDS = ("topic", "key", "value", "headers", "partition")
_REQUIRED = ("topic", "key")


class OutboxStashOperator(BaseOperator):
    """Stash `records` in one transaction, together with what `sql` writes; the result (XCom) is the ticket as text.

    A record is an OutboxRecord or a mapping. The mapping has `topic`, `key`, `value` (text or bytes; missing or None is
    a tombstone) and optionally `headers` (a mapping, or a list of pairs) and `partition`. `sql` is a statement, or
    several without parameters, without COMMIT; `parameters` are its `%s` or `%(name)s` values. More than a few thousand
    records are a job for Spark.

    The task commits once: a run that is tried again, or cleared, finds its entry in `<outbox>_commits`, writes nothing
    and returns the earlier ticket. For a deliberate repeat give another `version`, a whole number. The role needs what
    `airflow-outbox grant --job` gives.

    `kafka_conn_id` is the connection of the harvest, for lineage alone: with it, OpenLineage is told the records'
    topics, too. With `tracing`, the records carry the trace context of the task, as in `airflow_outbox.stash`; Airflow
    has to trace its tasks.

    Raises InvalidRecordError, which names record and field, before anything is written; PostgresError,
    OutboxMissingError.
    """

    template_fields: Sequence[str] = (
        "records",
        "sql",
        "parameters",
        "version",
        "outbox",
        "postgres_conn_id",
        "kafka_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"records": "json", "sql": "sql", "parameters": "json"}
    operator_extra_links: Collection[BaseOperatorLink] = (OutboxLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        records: Sequence[Mapping[str, Any] | OutboxRecord],
        sql: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        version: int | str = 0,
        outbox: str = "outbox",
        postgres_conn_id: str = PostgresHook.default_conn_name,
        kafka_conn_id: str | None = None,
        tracing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.records = records
        self.sql = sql
        self.parameters = parameters
        self.version = version
        self.outbox = outbox
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.tracing = tracing

    def execute(self, context: Context) -> str:
        """Stash, unless an earlier try has done it. Returns the ticket as text."""
        records = read_records(self.records)
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        name = OutboxName.parse(self.outbox)
        own = commit_id(context["ti"], int(self.version))
        with hook.transaction() as connection, translated(name):
            if (earlier := find_commit(connection, name, own)) is not None:
                self.log.info("version %s of this task was committed before; nothing is written again", self.version)
                return str(earlier.ticket)
            if self.sql:
                _run_sql(connection, self.sql, self.parameters)
            ticket = stash(connection, records, outbox=self.outbox, tracing=self.tracing)
            # Last: if the statement ended the transaction after all, no entry hides that records are missing.
            if not enter_commit(connection, name, own, records=len(records)):
                raise PostgresError(
                    "another try of this task has committed meanwhile; this one wrote nothing. Clear the task"
                )
        self.log.info("%d records stashed into %s; ticket %s", len(records), name, ticket)
        return str(ticket)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """The outbox's table and the topics of the records, and what `sql` reads and writes.

        Raises PostgresError, OutboxMissingError, ConfigurationError, InvalidRecordError.
        """
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        table = lineage.TableLocation.find(hook)
        read, written = table.touched_by(self.sql or "")
        outputs = [table.dataset, *written]
        if self.kafka_conn_id:
            topics = {record.topic for record in read_records(self.records)}
            outputs += lineage.topic_datasets(self.kafka_conn_id, topics)
        return lineage.lineage_of(self, inputs=read, outputs=outputs)


def read_records(given: object) -> list[OutboxRecord]:
    """Read the records that a Dag gives, mappings or OutboxRecords. Raises InvalidRecordError."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        kind = type(given).__name__
        problem = f"a list is needed, not {kind}; for a template, set render_template_as_native_obj on the Dag"
        raise InvalidRecordError(record=0, field="records", problem=problem)
    return [record if isinstance(record, OutboxRecord) else _read(place, record) for place, record in enumerate(given)]


def _read(place: int, given: object) -> OutboxRecord:
    if not isinstance(given, Mapping):
        raise InvalidRecordError(record=place, field="record", problem=f"must be a mapping, not {type(given).__name__}")
    for field in given:
        if field not in _FIELDS:
            raise InvalidRecordError(
                record=place, field=str(field), problem=f"unknown; the fields are {', '.join(_FIELDS)}"
            )
    for field in _REQUIRED:
        if field not in given:
            raise InvalidRecordError(record=place, field=field, problem="is missing")
    headers = given.get("headers") or ()
    if not isinstance(headers, Mapping):
        headers = tuple(tuple(pair) for pair in headers)  # JSON has made lists of pairs that were tuples
    return OutboxRecord(given["topic"], given["key"], given.get("value"), headers, given.get("partition"))


def _run_sql(connection: psycopg.Connection[Any], statement: str, parameters: Any) -> None:
    """Run the Dag's own statement. Raises PostgresError; the transaction is then rolled back."""
    try:
        connection.execute(cast("Any", statement), parameters)
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise PostgresError(f"sql: {reason}; nothing was written. Correct the statement") from error
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise PostgresError("sql ended the transaction, so no record was stashed. Leave COMMIT and ROLLBACK out")
