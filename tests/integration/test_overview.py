"""The page is made of few statements, each of them cheap, on real Postgres."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.harvesting import PATIENCE
from support.statement_log import StatementLog

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import OutboxMissingError, PostgresError
from airflow_outbox.operate.details import read_details, read_past
from airflow_outbox.operate.overview import begin_session, find_shape, read_overview
from airflow_outbox.operate.status import read_status
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.health_history import note_history
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.sql import statements
from airflow_outbox.values.health_history import ShardNote
from airflow_outbox.values.verdict import Backlog, State, Thresholds

NAME = OutboxName.parse("outbox")


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A writer's connection to a database with an outbox."""
    with connect(database, purpose="test") as own:
        init_outbox(own, NAME, key_type="varchar(100)")
    with psycopg.connect(database, autocommit=True) as made:
        yield made


@pytest.fixture
def page(connection: psycopg.Connection[Any], database: str) -> Iterator[psycopg.Connection[Any]]:
    """The page's connection to it."""
    with connect(database, purpose="page") as made:
        begin_session(made, seconds=PATIENCE)
        yield made


def lead(connection: psycopg.Connection[Any], outbox: str = "outbox") -> None:
    connection.execute(
        f"UPDATE {outbox}_shard SET member = 'somebody', heartbeat_at = clock_timestamp(), silence = 600, rate = 7,"
        " in_flight = 3,"
        " took_over_at = clock_timestamp(), delivery = 'exactly_once', topics = '{\"t\": 5}'".encode()
    )


def stash(connection: psycopg.Connection[Any], records: int) -> None:
    connection.execute(
        f"INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', n FROM generate_series(1, {records}) AS n".encode()
    )


def park(connection: psycopg.Connection[Any], *, topic: str, cause: str | None) -> None:
    connection.execute(
        "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        " transaction_id, incarnation, cause, reason)"
        " VALUES (1, now(), %s, 'k', ARRAY[]::text[], ARRAY[]::text[], pg_current_xact_id(), 1, %s, 'because')",
        (topic, cause),
    )


def test_one_statement_says_what_status_says(
    connection: psycopg.Connection[Any], page: psycopg.Connection[Any]
) -> None:
    lead(connection)
    stash(connection, 20)
    park(connection, topic="no.such", cause="unknown_topic")
    park(connection, topic="no.such", cause=None)
    connection.execute("INSERT INTO outbox_trouble (member, kind, error) VALUES ('other', 'kafka', 'away. Start it')")
    overview = read_overview(page, find_shape(page, NAME))
    status = read_status(page, NAME, thresholds=Thresholds(silence=600))
    assert overview.verdict.state is status.verdict.state is State.LAGGING
    assert overview.verdict.notes == status.verdict.notes == ("other: away. Start it",)
    assert overview.facts.backlog is not None
    assert overview.facts.backlog.records == status.backlog == 20
    assert overview.parked == 2  # the one that was refused, and the one behind it
    assert (overview.facts.member, overview.facts.rate, overview.facts.in_flight) == ("somebody", 7, 3)


def test_the_details_say_the_rest(connection: psycopg.Connection[Any], page: psycopg.Connection[Any]) -> None:
    lead(connection)
    park(connection, topic="no.such", cause="unknown_topic")
    park(connection, topic="no.such", cause=None)
    details, status = read_details(page, find_shape(page, NAME)), read_status(page, NAME)
    assert details.overview.parked == 2
    assert details.topics == [("t", 5)]
    assert [leader.member for leader in details.leaders] == ["somebody"]
    assert (details.outbox_id, details.incarnation) == (status.outbox_id, status.incarnation)
    assert [shard.delivery for shard in details.shards] == ["exactly_once"]


def test_an_outbox_is_judged_by_its_leaders_bounds(
    connection: psycopg.Connection[Any], page: psycopg.Connection[Any]
) -> None:
    lead(connection)
    stash(connection, 1)
    connection.execute("UPDATE outbox SET create_time = clock_timestamp() - interval '400 s'")
    shape = find_shape(page, NAME)
    assert read_overview(page, shape).verdict.state is State.LAGGING
    connection.execute("UPDATE outbox_shard SET lagging_after = 3000, stalled_after = 3000")
    assert read_overview(page, shape).verdict.state is State.HEALTHY
    connection.execute("UPDATE outbox_shard SET heartbeat_at = clock_timestamp() - interval '20 min'")
    assert read_overview(page, shape).verdict.state is State.NO_LEADER
    connection.execute("UPDATE outbox_shard SET silence = 3000")
    assert read_overview(page, shape).verdict.state is State.HEALTHY


def test_counting_ends_at_a_bound(connection: psycopg.Connection[Any], page: psycopg.Connection[Any]) -> None:
    lead(connection)
    stash(connection, 30)
    overview = read_overview(page, find_shape(page, NAME), most=10)
    assert overview.facts.backlog is not None
    assert (overview.facts.backlog.records, overview.facts.backlog.is_exact) == (10, False)


def test_a_count_that_takes_too_long_is_left_out(
    connection: psycopg.Connection[Any], page: psycopg.Connection[Any]
) -> None:
    lead(connection)
    shape = find_shape(page, NAME)
    begin_session(page, seconds=4)  # the rest takes milliseconds
    slow = replace(shape, backlog="overview.slowly")
    overview = read_overview(page, slow)
    assert overview.facts.backlog is None
    assert overview.verdict.state is State.HEALTHY


@pytest.fixture(autouse=True)
def slow_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that never ends, as dead rows make it."""
    known = statements("overview")
    text = "SELECT 0 AS shard, count(*) AS records, 0::float8 AS oldest_age FROM pg_sleep(1800)"
    monkeypatch.setitem(cast("dict[str, str]", known), "slowly", text)


def test_the_last_hour_is_a_number_a_minute(connection: psycopg.Connection[Any], page: psycopg.Connection[Any]) -> None:
    lead(connection)
    shape, rates, tens = find_shape(page, NAME), tuple[float | None, ...](), [0, 1]
    while tens[0] != tens[1]:  # what is noted and read in the same ten seconds
        connection.execute("DELETE FROM outbox_history")
        note_history(page, NAME, [ShardNote(member="somebody", state=State.HEALTHY, backlog=Backlog(0), rate=9.0)])
        tens = ten_seconds(connection, "(SELECT noted_at FROM outbox_history)")
        connection.execute(
            """
            INSERT INTO outbox_history
            SELECT 0, mod(tens - n, 8640), noted_at - n * interval '10 s', state, 0, true, 0, 5, 0, 0
            FROM (SELECT floor(extract(epoch FROM noted_at) / 10)::bigint AS tens, noted_at, state
                  FROM outbox_history) AS newest,
                 generate_series(1, 180) AS n
            """
        )
        rates = read_overview(page, shape).rates
        tens += ten_seconds(connection, "clock_timestamp()")
    assert len(rates) == 60
    assert rates[-1] == 5
    assert 29 <= sum(rate is not None for rate in rates) <= 31
    assert rates[0] is None


def ten_seconds(connection: psycopg.Connection[Any], time: str) -> list[int]:
    """The number of the ten seconds in which a time is."""
    [(found,)] = connection.execute(f"SELECT floor(extract(epoch FROM {time}) / 10)::bigint".encode()).fetchall()
    return [found]


def test_at_most_ten_statements(connection: psycopg.Connection[Any], database: str, postgres: EmbeddedPostgres) -> None:
    lead(connection)
    log = StatementLog(database, postgres.log)
    with connect(database, purpose="page") as page:
        begin_session(page, seconds=PATIENCE)
        backend, begin = page.info.backend_pid, log.end
        shape = find_shape(page, NAME)
        read_details(page, shape)
        read_past(page, shape)
        first = log.statements([backend], since=begin)
        begin = log.end
        read_overview(page, shape)
        again = log.statements([backend], since=begin)
    assert 7 <= len(first) <= 10, [statement.text for statement in first]
    assert len(again) == 1


def test_nothing_that_grows_is_scanned(connection: psycopg.Connection[Any], page: psycopg.Connection[Any]) -> None:
    lead(connection)
    stash(connection, 5_000)
    for number in range(100):
        park(connection, topic=f"t{number}", cause="unknown_topic")
    connection.execute("ANALYZE outbox, outbox_parked")
    before = scanned(connection)
    shape = find_shape(page, NAME)
    read_details(page, shape)
    read_overview(page, shape)
    page.execute("SELECT pg_stat_force_next_flush()")
    page.execute("SELECT 1")
    assert scanned(connection) == before
    connection.execute("SELECT count(kafka_value) FROM outbox")  # the check can fail
    assert scanned(connection) != before


@pytest.mark.parametrize("role", ["look", "harvest"])
def test_these_roles_may_look(role: str, connection: psycopg.Connection[Any], database: str) -> None:
    with as_role(role, connection, database) as page:
        assert read_details(page, find_shape(page, NAME)).overview.verdict.state is State.NO_LEADER
        assert read_past(page, find_shape(page, NAME)).day == ()


def test_a_role_that_may_not_look_is_told_what_it_needs(connection: psycopg.Connection[Any], database: str) -> None:
    with as_role("stash", connection, database) as page:
        shape = find_shape(page, NAME)
        with pytest.raises(PostgresError, match="airflow-outbox grant"):
            read_overview(page, shape)


def test_a_table_that_is_not_there_is_named(page: psycopg.Connection[Any]) -> None:
    with pytest.raises(OutboxMissingError, match='there is no table "other" in the schemas public'):
        find_shape(page, OutboxName.parse("other"))
    with pytest.raises(OutboxMissingError, match="in the schema nowhere"):
        find_shape(page, OutboxName.parse("nowhere.outbox"))


@contextmanager
def as_role(role: str, connection: psycopg.Connection[Any], database: str) -> Iterator[psycopg.Connection[Any]]:
    """The page's connection of somebody with the rights of one role."""
    login = f"r{uuid.uuid4().hex[:12]}"
    connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x'".encode())
    try:
        for statement in grant_statements(connection, NAME, role, login):
            connection.execute(statement.encode())
        with connect(make_conninfo(database, user=login, password="x"), purpose="page") as page:
            begin_session(page, seconds=PATIENCE)
            yield page
    finally:
        connection.execute(f"DROP OWNED BY {login}; DROP ROLE {login}".encode())


def scanned(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """How many rows were read by scans of whole tables."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    query = (
        "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname ~ '^outbox(_parked)?$' ORDER BY relname"
    )
    return connection.execute(query).fetchall()
