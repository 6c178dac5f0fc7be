"""The options of the `outbox` data source, read and checked before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_outbox.errors import ConfigurationError, DataSourceError
from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.postgres.connection import parsed
from airflow_outbox.postgres.names import OutboxName, is_an_outboxs_own, is_kafkas_own
from airflow_outbox.values.trace_context import TRACEPARENT, TRACESTATE

INLINE_BYTES = 65_536
STREAM_INLINE_BYTES = 1_048_576
STAGING_TTL_SECONDS = 86_400
TOPIC_RULE = (
    "is not a legal name: 1 to 249 letters, digits, '.', '_' and '-', no '__' at the beginning, and not an outbox's "
    "own topic"
)

OPTION_NAMES = (
    "url",
    "user",
    "password",
    "dbtable",
    "topic",
    "key",
    "headers",
    "partition",
    "format",
    "traceparent",
    "tracestate",
    "orderBy",
    "commitSql",
    "txnAppId",
    "txnVersion",
    "inlineBytes",
    "stagingTtlSeconds",
)
_JDBC_AS_LIBPQ = frozenset({"user", "password", "sslmode", "options"})
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^,"`]+?))\s*(?:,|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one write.

    `topic`, `key`, `headers` and `partition` are what all its records have in common; None leaves each to a column.
    With `are_cloud_events`, the columns `ce_…` are attributes of events. `trace_headers` are added to records that have
    no header of these names. `order_by` empty keeps the order of partitions and rows. `commit_id` None means that the
    write has no id to be found again by. `inline_bytes` None leaves it to the kind of write.
    """

    data_source: str = field(repr=False)
    outbox: OutboxName
    topic: str | None = None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    partition: int | None = None
    are_cloud_events: bool = False
    trace_headers: tuple[tuple[str, str], ...] = ()
    order_by: tuple[str, ...] = ()
    commit_sql: str | None = None
    commit_id: CommitId | None = None
    inline_bytes: int | None = None
    staging_ttl_seconds: int = STAGING_TTL_SECONDS


def read_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options, whose names have no case, as Spark gives them. Raises ConfigurationError, InvalidNameError."""
    known = {name.lower(): name for name in OPTION_NAMES}
    given = {}
    for name, value in options.items():
        if name.lower() not in known:
            near = get_close_matches(name.lower(), known, n=1)
            meant = f"; did you mean {known[near[0]]}?" if near else f". The options are {', '.join(OPTION_NAMES)}"
            raise ConfigurationError(f"option {name}: unknown{meant}")
        given[known[name.lower()]] = value
    if not given.get("url"):
        raise ConfigurationError(
            "option url is missing. Give a connection string, such as postgresql://user@host/database. A job that "
            "OutboxSparkSubmitOperator submits calls register(spark) instead"
        )
    if "topic" in given and not is_legal_topic(given["topic"]):
        raise ConfigurationError(f"option topic: {given['topic']!r} {TOPIC_RULE}")
    ttl = _whole(given, "stagingTtlSeconds", least=1)
    return WriteOptions(
        data_source=_data_source(given["url"], user=given.get("user"), password=given.get("password")),
        outbox=OutboxName.parse(given.get("dbtable", "outbox")),
        topic=given.get("topic"),
        key=given.get("key"),
        headers=_headers(given.get("headers")),
        partition=_whole(given, "partition"),
        are_cloud_events=_are_cloud_events(given.get("format")),
        trace_headers=_trace_headers(given),
        order_by=_columns(given.get("orderBy", "")),
        commit_sql=given.get("commitSql") or None,
        commit_id=_commit_id(given),
        inline_bytes=_whole(given, "inlineBytes"),
        staging_ttl_seconds=STAGING_TTL_SECONDS if ttl is None else ttl,
    )


def is_legal_topic(name: str) -> bool:
    """Whether Kafka allows records in a topic of this name."""
    is_plain = _TOPIC.fullmatch(name) is not None and name not in {".", ".."}
    return is_plain and not is_kafkas_own(name) and not is_an_outboxs_own(name)


def _data_source(url: str, *, user: str | None, password: str | None) -> str:
    """A libpq connection string, from one, from a URI, or from a JDBC URL."""
    uri = url.removeprefix("jdbc:")
    if uri != url:
        parts = urlsplit(uri)
        # JDBC's own parameters, such as reWriteBatchedInserts, are unknown to libpq; user and password are the same.
        shared = [pair for pair in parts.query.split("&") if pair.split("=")[0] in _JDBC_AS_LIBPQ]
        uri = urlunsplit(parts._replace(query="&".join(shared)))
    try:
        parsed(uri)
        return make_conninfo(uri, user=user, password=password)
    except (DataSourceError, psycopg.Error):
        # Without Postgres' reason, which quotes what it could not read, perhaps a password.
        raise ConfigurationError(
            "option url is not a connection string. Give a URI such as postgresql://user@host/database, or "
            "key=value pairs"
        ) from None


def _commit_id(given: Mapping[str, str]) -> CommitId | None:
    version = _whole(given, "txnVersion")
    if "txnAppId" in given:
        if not given["txnAppId"]:
            raise ConfigurationError("option txnAppId is empty. Name the job; each try of it must have the same name")
        return CommitId(given["txnAppId"], version or 0)
    if version is not None:
        raise ConfigurationError("option txnVersion needs txnAppId: together they are the id of a commit. Give both")
    return None


def _whole(given: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    if name not in given:
        return None
    try:
        number = int(given[name])
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigurationError(f"option {name} is {given[name]!r}. Give a whole number, {least} or more")
    return number


def _are_cloud_events(form: str | None) -> bool:
    if form not in (None, "cloudevents"):
        raise ConfigurationError(f"option format is {form!r}. Give cloudevents, or leave it out")
    return form is not None


def _headers(text: str | None) -> tuple[tuple[str, str], ...] | None:
    if text is None:
        return None
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(name and isinstance(value, str) for name, value in headers.items()):
        raise ConfigurationError('option headers: give a JSON object of strings, such as {"schema": "order/1"}')
    return tuple(headers.items())


def _trace_headers(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if TRACEPARENT not in given:
        if TRACESTATE in given:
            raise ConfigurationError("option tracestate needs traceparent. Give all that trace_headers() returns")
        return ()
    if not _TRACEPARENT.fullmatch(given[TRACEPARENT]):
        raise ConfigurationError(
            f"option traceparent is {given[TRACEPARENT]!r}, which is no trace context. Give all that trace_headers() "
            "returns"
        )
    return tuple((name, given[name]) for name in (TRACEPARENT, TRACESTATE) if name in given)


def _columns(text: str) -> tuple[str, ...]:
    """`a, b`; a name with a comma in it stands in double quotes or backticks."""
    columns, place = [], 0
    while place < len(text):
        match = _COLUMN.match(text, place)
        if match is None:
            raise ConfigurationError(f"option orderBy is {text!r}. Give names of columns, separated by commas")
        quoted, ticked, plain = match.groups()
        columns.append(quoted.replace('""', '"') if quoted else ticked.replace("``", "`") if ticked else plain)
        place = match.end()
    return tuple(columns)
