"""Lineage: the tables and topics of a task, as OpenLineage names them.

Only OpenLineage's provider asks for lineage. So its modules are imported inside functions: without it nothing fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage

_BROKER = re.compile(r"(?:\w+://)?(\[[^\]]*\]|[^:]*)(?::(\d+))?")
_PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[sbt]")
_POSTGRES_PORT, _KAFKA_PORT = 5432, 9092


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Where an outbox's table is: its server as a namespace, its database, and its schema.

    `default_schema` is the schema of tables that a statement names without one (None: there is none).
    """

    namespace: str
    database: str
    schema: str
    table: str
    default_schema: str | None

    @classmethod
    def find(cls, hook: OutboxHook) -> Self:
        """Ask Postgres where the outbox's table is. Raises PostgresError, OutboxMissingError."""
        name, server = OutboxName.parse(hook.outbox), hook.get_connection(hook.postgres_conn_id)
        [(database, default_schema, schema)] = _ask(hook, "lineage.location")
        if schema is None:
            raise OutboxMissingError(f"{name}: there is no such table. Run `airflow-outbox init`")
        return cls(postgres_namespace(server.host, server.port), database, schema, name.table, default_schema)

    @property
    def dataset(self) -> Dataset:
        return _dataset(self.namespace, f"{self.database}.{self.schema}.{self.table}")

    def touched_by(self, statement: str) -> tuple[list[Dataset], list[Dataset]]:
        """The tables of the same database that SQL reads, and those that it writes. A statement that OpenLineage's
        parser does not understand has none.
        """
        from airflow.providers.openlineage.sqlparser import SQLParser

        statements = SQLParser.split_sql_string(_PLACEHOLDER.sub("NULL", statement))  # it knows no placeholders
        found = SQLParser(dialect="postgres", default_schema=self.default_schema).parse(statements)
        if found is None:
            return [], []

        def datasets(tables: Iterable[Any]) -> list[Dataset]:
            return [_dataset(self.namespace, f"{self.database}.{table.schema}.{table.name}") for table in tables]

        return datasets(found.in_tables), datasets(found.out_tables)


def published_topics(hook: OutboxHook) -> list[str]:
    """The topics that the outbox was published to, as far as Postgres knows: none where it is harvested at least once.

    Raises PostgresError, OutboxMissingError.
    """
    return [topic for (topic,) in _ask(hook, "lineage.topics")]


def topic_datasets(kafka_conn_id: str, topics: Iterable[str]) -> list[Dataset]:
    """Topics on the brokers of a Kafka connection, each once. Raises ConfigurationError."""
    brokers = OutboxHook(kafka_conn_id=kafka_conn_id).kafka_settings()["bootstrap.servers"]
    return [_dataset(kafka_namespace(brokers), topic) for topic in sorted(set(topics))]


def lineage_of(
    task: Any, *, inputs: Iterable[Dataset] = (), outputs: Iterable[Dataset] = ()
) -> OperatorLineage[Any, Any]:
    """The known lineage of a task, and the `inlets` and `outlets` that its Dag declares.

    The provider leaves out the declared ones where an operator tells any lineage itself.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    def with_declared(known: Iterable[Dataset], declared: Iterable[object]) -> list[Dataset]:
        every = [*known, *filter(None, map(ExtractorManager.convert_to_ol_dataset, declared))]
        return list({(dataset.namespace, dataset.name): dataset for dataset in every}.values())

    return OperatorLineage(inputs=with_declared(inputs, task.inlets), outputs=with_declared(outputs, task.outlets))


def postgres_namespace(host: str | None, port: int | None) -> str:
    """The namespace of a server's tables. Several hosts are named by the first, a socket by `localhost`."""
    first = (host or "").partition(",")[0].strip().lower()
    name = "localhost" if not first or first.startswith(("/", "@")) else first
    return f"postgres://{name}:{port or _POSTGRES_PORT}"


def kafka_namespace(bootstrap_servers: str) -> str:
    """The namespace of a cluster's topics. Several brokers are named by the first."""
    first = bootstrap_servers.partition(",")[0].strip().lower()
    match = _BROKER.fullmatch(first)
    host, port = match.groups() if match else (first, None)
    return f"kafka://{host}:{port or _KAFKA_PORT}"


def _dataset(namespace: str, name: str) -> Dataset:
    from airflow.providers.common.compat.openlineage.facet import Dataset

    return Dataset(namespace=namespace, name=name)


def _ask(hook: OutboxHook, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, soon or never: the connection waits for a few seconds. Raises PostgresError."""
    with closing(connect(hook.data_source(), purpose="lineage", is_pooled=True)) as connection:
        return Statements(connection, OutboxName.parse(hook.outbox)).rows(statement)
