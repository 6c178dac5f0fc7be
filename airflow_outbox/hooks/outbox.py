"""OutboxHook: an outbox and its harvest, through Airflow's connections."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import psycopg
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import mask_secret
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import get_current_context
from psycopg.conninfo import make_conninfo

from airflow_outbox.errors import ConfigurationError, JobError, OutboxError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions
from airflow_outbox.harvest.kafka.oauth import FetchedTokens, Token, fetch_token
from airflow_outbox.hooks.commit_id import commit_id
from airflow_outbox.postgres.commits import find_commit
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.stash import stash
from airflow_outbox.tickets.published import TicketStatus, published, ticket_status
from airflow_outbox.values.records import OutboxRecord, Ticket

FROM_CONNECTIONS = frozenset({"data_source", "outbox_table", "outboxes", "kafka", "clusters"})
FROM_DAGS = frozenset(
    {
        *("acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level", "compression.type"),
        *("client.id", "client.rack", "connections.max.idle.ms", "delivery.timeout.ms", "fetch.max.bytes"),
        *("fetch.message.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms", "linger.ms", "max.in.flight"),
        *("max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "message.max.bytes"),
        *("message.timeout.ms", "metadata.max.age.ms", "partitioner", "queue.buffering.max.kbytes"),
        *("queue.buffering.max.messages", "queue.buffering.max.ms", "queued.max.messages.kbytes"),
        *("receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms"),
        *("retry.backoff.max.ms", "retry.backoff.ms", "socket.connection.setup.timeout.ms", "socket.keepalive.enable"),
        *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms"),
        *("sticky.partitioning.linger.ms", "topic.metadata.refresh.interval.ms", "transaction.timeout.ms"),
    }
)
"""The librdkafka settings that a Dag may set: they neither run code, nor reveal secrets, nor name other brokers."""
_POLL_INTERVAL = 0.5
_SECRET_SETTING = re.compile(r"password|secret|token|\.pem$|credential|oauthbearer\.config|basic\.auth")


def check_settings(
    settings: Mapping[str, Any], *, outbox: str = "outbox", outboxes: Sequence[str] = (), clusters: Iterable[str] = ()
) -> None:
    """Check settings of the harvester, the names of one outbox or of many, and of several clusters, as far as possible
    without the connections.

    Raises ConfigurationError.
    """
    if taken := sorted(FROM_CONNECTIONS & settings.keys()):
        raise ConfigurationError(f"settings: {taken[0]} comes from the connections and the outbox's name. Leave it out")
    for group in ("kafka_producer", "kafka_consumer"):
        given = settings.get(group)
        for name in given if isinstance(given, Mapping) else ():
            if name not in FROM_DAGS:
                raise ConfigurationError(
                    f"settings: a Dag may not set {group}.{name}, because settings other than tuning could run code, "
                    "reveal secrets or send records elsewhere. Put it into the Kafka connection, or leave it out. A "
                    f"Dag may set {', '.join(sorted(FROM_DAGS))}"
                )
    reach = {"bootstrap.servers": "by the connection"}
    which = {"outboxes": list(outboxes)} if outboxes else {"outbox_table": outbox}
    known = {"data_source": "", **which, **_reaching(reach, dict.fromkeys(clusters, reach))}
    HarvestConfig.validated({**known, **settings}, source="settings")


def _reaching(kafka: object, clusters: Mapping[str, object]) -> dict[str, object]:
    """Return the settings by which one cluster, or several, are reached."""
    return {"clusters": clusters} if clusters else {"kafka": kafka}


class OutboxHook(PostgresHook):
    """An outbox in the database of a Postgres connection, harvested to the brokers of a Kafka connection.

    `postgres_conn_id` and `kafka_conn_id` are connections of the types `postgres` and `kafka`; `outbox` is `table` or
    `schema.table`. For several clusters, `kafka_conn_ids` has a connection for each cluster's name. Everything that a
    PostgresHook does works too. The outbox's own statements use psycopg, whichever driver that hook has.

    Making one looks nothing up; what reads a connection raises AirflowNotFoundException where Airflow does not know it.
    """

    conn_name_attr = "postgres_conn_id"
    default_conn_name = "postgres_default"
    hook_name = "Outbox"

    def __init__(
        self,
        *,
        postgres_conn_id: str = default_conn_name,
        kafka_conn_id: str = KafkaBaseHook.default_conn_name,
        outbox: str = "outbox",
        kafka_conn_ids: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(postgres_conn_id=postgres_conn_id)
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.kafka_conn_ids = dict(kafka_conn_ids or {})
        self.outbox = outbox

    def stash(self, records: OutboxRecord | Iterable[OutboxRecord], *, tracing: bool = False) -> Ticket:
        """Stash records in a transaction of their own; `tracing` is as in `airflow_outbox.stash`.

        Raises what `transaction` and `airflow_outbox.stash` raise.
        """
        with self.transaction() as connection:
            return stash(connection, records, outbox=self.outbox, tracing=tracing)

    def published(self, ticket: Ticket | str) -> bool:
        """Whether all of a ticket's transaction is published. Raises what `airflow_outbox.published` raises."""
        with self.transaction() as connection:
            return published(connection, ticket, outbox=self.outbox)

    def ticket_status(self, ticket: Ticket | str) -> TicketStatus:
        """How far a ticket's transaction is. Raises what `airflow_outbox.tickets.published.ticket_status` raises."""
        with self.transaction() as connection:
            return ticket_status(connection, ticket, outbox=self.outbox, counted=False)

    def wait_until_published(self, ticket: Ticket | str, *, timeout: float) -> None:
        """Wait, in this process, until all of a ticket's transaction is published.

        It is for a task that has more to do; a task that only waits is an OutboxPublishedSensor. Raises TimeoutError
        after `timeout` seconds, and what `airflow_outbox.published` raises.
        """
        deadline = time.monotonic() + timeout
        while not self.published(ticket):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the transaction of ticket {ticket} was not published within {timeout:g} s. Wait longer, or look "
                    "at `airflow-outbox status`"
                )
            time.sleep(_POLL_INTERVAL)

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A psycopg connection in a transaction, committed at the end of the block: for records and business rows.

        Raises ConfigurationError for a connection that libpq does not understand, PostgresError when it can't be
        opened.
        """
        try:
            connection = psycopg.connect(self.data_source(), autocommit=True)
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            raise PostgresError(
                f"connection {self.postgres_conn_id}: {reason}. Check it, and that the server is up"
            ) from error
        try:
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    def register(self, session: Any, *, version: int = 0) -> None:
        """Let a task write by `format("outbox")` to this outbox, in the Spark session that `@task.pyspark` gives it.

        Batch writes commit under the task's own id: a task that is tried again, or cleared, commits nothing more. For a
        deliberate repeat give another `version`. With a local master, Spark uses the Python that runs the task, unless
        PYSPARK_PYTHON names another. Raises ConfigurationError.
        """
        from airflow_outbox.spark.registration import register  # loads Spark, which other uses of the hook don't need

        outbox = {"url": self.data_source(), "dbtable": self.outbox}
        own = commit_id(get_current_context()["ti"], version)
        commit = {"txnAppId": own.app_id, "txnVersion": str(own.version)}
        spark = session.sparkContext
        if spark.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
            spark.pythonExec = sys.executable  # else it is the first python3 on PATH, which may have no psycopg
        register(session, options=outbox | commit)

    def committed(self, *, version: int = 0) -> Ticket:
        """The ticket of what this task has written by `format("outbox")`, in any of its tries.

        Raises JobError when it has written nothing; PostgresError, OutboxMissingError.
        """
        own = commit_id(get_current_context()["ti"], version)
        with self.transaction() as connection:
            commit = find_commit(connection, OutboxName.parse(self.outbox), own)
        if commit is None:
            raise JobError(f'nothing is committed under {own}. Write with format("outbox") first')
        return commit.ticket

    def data_source(self) -> str:
        """The Postgres connection as a libpq connection string; it holds the password. Raises ConfigurationError."""
        connection = self.get_connection(self.postgres_conn_id)
        extra = connection.extra_dejson
        user, password, port = connection.login, connection.password, connection.port
        if extra.get("iam"):
            user, password, port = self.get_iam_token(connection)
        parameters = {
            "host": connection.host,
            "port": port,
            "dbname": connection.schema,
            "user": user,
            "password": password,
            "application_name": "airflow-outbox",
            **{name: value for name, value in extra.items() if name not in self.ignored_extra_options},
        }
        for name, value in parameters.items():
            if value and _SECRET_SETTING.search(name):
                mask_secret(str(value))
        try:
            return make_conninfo(**{name: str(value) for name, value in parameters.items() if value not in (None, "")})
        except psycopg.ProgrammingError as error:
            raise ConfigurationError(
                f"connection {self.postgres_conn_id}: {str(error).strip()}. Correct its extra"
            ) from None

    def kafka_settings(self) -> dict[str, Any]:
        """The Kafka connection as librdkafka settings, secrets included, except `oauth_cb`: see `token_source`.

        Raises ConfigurationError for settings that can't be passed to a process.
        """
        return _passable(self.kafka_conn_id, self._kafka_connection(self.kafka_conn_id))

    def token_source(self) -> Callable[[], Token] | None:
        """A function that fetches a token for the Kafka connection: it may take a while and raise TokenError. None when
        the connection has no `oauth_cb`, neither its own nor one that Airflow's provider adds for a cloud's brokers.

        Several clusters have none: `harvest_config` refuses such connections.
        """
        if self.kafka_conn_ids:
            return None
        connection = self._kafka_connection(self.kafka_conn_id)
        if (callback := connection.get("oauth_cb")) is None:
            return None
        return partial(fetch_token, callback, str(connection.get("sasl.oauthbearer.config") or ""))

    def _kafka_connection(self, conn_id: str) -> Mapping[str, Any]:
        if conn_id not in self._kafka_connections:
            try:
                settings: dict[str, Any] = _KafkaSettings(conn_id).get_conn  # type: ignore[no-untyped-call]
            except ValueError as error:
                raise ConfigurationError(f"connection {conn_id}: {error}") from error
            self._kafka_connections[conn_id] = settings
        return self._kafka_connections[conn_id]

    @cached_property
    def _kafka_connections(self) -> dict[str, Mapping[str, Any]]:
        return {}

    def harvest_config(self, *, outboxes: Sequence[str] = (), **settings: Any) -> dict[str, Any]:
        """The configuration of a harvesting process, as JSON takes it; it holds secrets.

        `settings` are added (`limits`, `leader_topic`, …). `outboxes`, if there are any, are harvested instead of the
        one. Raises ConfigurationError, also for a connection whose password is a token, which would expire during a
        harvest.
        """
        if self.get_connection(self.postgres_conn_id).extra_dejson.get("iam"):
            raise ConfigurationError(
                f"connection {self.postgres_conn_id}: iam creates passwords that expire within minutes, but a harvest "
                "runs longer. For harvesting, use a connection with a password or a certificate"
            )
        for conn_id in self.kafka_conn_ids.values():
            if self._kafka_connection(conn_id).get("oauth_cb") is not None:
                raise ConfigurationError(
                    f"connection {conn_id}: oauth_cb gets tokens for one cluster, but not yet for one of several. Use "
                    "another login"
                )
        config = self._settings(settings)
        if outboxes:
            del config["outbox_table"]
            config["outboxes"] = list(outboxes)
        self._validated(config)
        return config

    def config(self, **settings: Any) -> HarvestConfig:
        """The configuration of a command in this process, with `settings` added. Raises ConfigurationError."""
        return self._validated(self._settings(settings, with_tokens=True))

    def _settings(self, settings: Mapping[str, Any], *, with_tokens: bool = False) -> dict[str, Any]:
        check_settings(settings, outbox=self.outbox, clusters=self.kafka_conn_ids)

        def reached(conn_id: str) -> dict[str, Any]:
            connection = self._kafka_connection(conn_id)
            callback = connection.get("oauth_cb")
            tokens = {"oauth_cb": FetchedTokens(callback)} if with_tokens and callback is not None else {}
            return _passable(conn_id, connection) | tokens

        clusters = {name: reached(conn_id) for name, conn_id in self.kafka_conn_ids.items()}
        reach = _reaching(None if clusters else reached(self.kafka_conn_id), clusters)
        return {"data_source": self.data_source(), "outbox_table": self.outbox, **reach, **settings}

    def _validated(self, settings: Mapping[str, Any]) -> HarvestConfig:
        return HarvestConfig.validated(settings, source=self.connections)

    @property
    def connections(self) -> str:
        """The connections, as an error names them."""
        of_kafka = [*self.kafka_conn_ids.values()] or [self.kafka_conn_id]
        return f"connections {', '.join([self.postgres_conn_id, *of_kafka[:-1]])} and {of_kafka[-1]}"

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]  # the base class has no annotation
        """Whether the outbox, the brokers and the election's topic are there; if not, why. Raises
        AirflowNotFoundException for a connection that Airflow does not know.
        """
        try:
            self.harvest_config()
            config = self.config()
            with self.transaction() as connection:
                identity = OutboxTable(connection, OutboxName.parse(self.outbox)).identity()
            leader_partitions(config, KafkaNames.of(config, identity.outbox_id))
        except OutboxError as error:
            return False, str(error)
        return True, f"outbox {self.outbox} ({identity.outbox_id}) and Kafka were reached"


class _KafkaSettings(KafkaBaseHook):
    """Builds settings as the Kafka provider does, cloud logins included, without the client that it makes of them."""

    def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


def _passable(conn_id: str, connection: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Kafka connection's settings, masked in logs, without `oauth_cb`.

    Raises ConfigurationError for those that can't be passed to a process.
    """
    settings = {name: value for name, value in connection.items() if name != "oauth_cb"}
    for name, value in settings.items():
        if callable(value):
            raise ConfigurationError(
                f"connection {conn_id}: {name} is a Python function, which can't be passed to a process. Leave it out"
            )
        if _SECRET_SETTING.search(name):
            mask_secret(str(value))
    return settings
