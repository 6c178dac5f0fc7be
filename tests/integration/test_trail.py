"""The trail on a real Postgres: each request is noted with it, nobody rewrites that, and it stays small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from support.parking import park_by_hand

from airflow_outbox.cli import main
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.operate.reshard import request_layout
from airflow_outbox.operate.status import ask_handover, ask_pause
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import Role, grant_statements, init_outbox
from airflow_outbox.postgres.slots import make_indexes

NAME = OutboxName.parse("outbox")
FILL = "INSERT INTO outbox_trail (action) SELECT 'pause' FROM generate_series(1, %s)"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        yield connection


@pytest.fixture
def operator(connection: psycopg.Connection[Any], database: str) -> Iterator[psycopg.Connection[Any]]:
    yield from _acting_as("operate", connection, database)


@pytest.fixture
def other(connection: psycopg.Connection[Any], database: str) -> Iterator[psycopg.Connection[Any]]:
    yield from _acting_as("harvest", connection, database)


def _acting_as(kind: Role, owner: psycopg.Connection[Any], database: str) -> Iterator[psycopg.Connection[Any]]:
    role = f"{kind}_{owner.info.dbname[-12:]}"
    owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
    try:
        for statement in grant_statements(owner, NAME, kind, role):
            owner.execute(statement.encode())
        with closing(psycopg.connect(database, user=role, password="secret", autocommit=True)) as connection:
            yield connection
    finally:
        owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def count(connection: psycopg.Connection[Any], role: str) -> int:
    query = "SELECT count(*) FROM outbox_trail WHERE asked_by = %s"
    [(found,)] = connection.execute(query, [role]).fetchall()
    return int(found)


def test_each_request_is_noted(connection: psycopg.Connection[Any], operator: psycopg.Connection[Any]) -> None:
    park_by_hand(connection, "a", "b", "b")
    ask_pause(operator, NAME, paused=True, on_behalf_of="ada")
    ask_pause(operator, NAME, paused=False)
    ask_handover(operator, NAME, shard=0, on_behalf_of="ada")
    requests = ParkedRequests(operator, NAME)
    assert requests.ask("retry", Choice(topic="t", key="b", cause="refused"), on_behalf_of="bob") == 2
    assert requests.ask("discard", Choice(everything=True), reason="why", on_behalf_of="bob") == 3
    connection.execute("UPDATE outbox_parked SET discarded_at = now()")
    assert ParkedRequests(connection, NAME).forget(Choice(ids=(1,))) == 1
    found = read_trail(operator, NAME)
    role = operator.info.user
    assert [(each.asked_by, each.on_behalf_of, each.action, each.matched, each.records) for each in found] == [
        (connection.info.user, None, "purge", "id 1", 1),
        (role, "bob", "discard", "all", 3),
        (role, "bob", "retry", "topic t; key b; cause refused", 2),
        (role, "ada", "handover", "shard 0", None),
        (role, None, "resume", None, None),
        (role, "ada", "pause", None, None),
    ]
    assert found[1].reason == "why"
    assert [each.action for each in read_trail(operator, NAME, before=found[1].number, limit=2)] == [
        "retry",
        "handover",
    ]


def test_requests_for_shards_are_noted(connection: psycopg.Connection[Any]) -> None:
    make_indexes(connection, NAME)
    request_layout(connection, NAME, shards=4, on_behalf_of="ada")
    request_layout(connection, NAME, shards=None)
    assert [(each.action, each.matched, each.on_behalf_of) for each in read_trail(connection, NAME)] == [
        ("reshard", "withdrawn", None),
        ("reshard", "4 shards", "ada"),
    ]


def test_a_request_that_means_nothing_or_fails_is_not_noted(connection: psycopg.Connection[Any]) -> None:
    assert ParkedRequests(connection, NAME).ask("retry", Choice(everything=True)) == 0
    with connection.transaction(force_rollback=True):
        ask_pause(connection, NAME, paused=True)
    assert read_trail(connection, NAME) == []


def test_a_record_knows_for_whom_its_last_request_was_made(
    connection: psycopg.Connection[Any], operator: psycopg.Connection[Any]
) -> None:
    park_by_hand(connection, "a", "b")
    requests = ParkedRequests(operator, NAME)
    requests.ask("retry", Choice(key="a"), on_behalf_of="ada")
    first, second = (row["number"] for row in requests.page(Choice(everything=True)))
    record = requests.record(first)
    assert record is not None
    assert (record["last_request"], record["requested_on_behalf_of"], record["requested_by"]) == (
        "retry",
        "ada",
        operator.info.user,
    )
    operator.execute("UPDATE outbox_parked SET requested = 'discard', request_reason = 'by hand'")  # past the trail
    for number in (first, second):
        record = requests.record(number)
        assert record is not None
        assert (record["requested"], record["last_request"], record["requested_on_behalf_of"]) == (
            "discard",
            None,
            None,
        )


def test_it_is_bounded_and_no_role_pushes_out_anothers(
    connection: psycopg.Connection[Any], operator: psycopg.Connection[Any], other: psycopg.Connection[Any]
) -> None:
    ask_pause(operator, NAME, paused=True, on_behalf_of="ada")
    for _ in range(3):
        other.execute(FILL, [6_000])
    assert (count(connection, operator.info.user), count(connection, other.info.user)) == (1, 10_000)
    connection.execute("UPDATE outbox_trail SET asked_at = now() - interval '91 days'")
    ask_pause(operator, NAME, paused=False)
    assert [each.action for each in read_trail(connection, NAME)] == ["resume"]


def test_nobody_else_can_use_what_prunes_it(
    connection: psycopg.Connection[Any], operator: psycopg.Connection[Any]
) -> None:
    """It runs with its owner's rights, on the table whose trigger it is."""
    connection.execute("CREATE TABLE theirs (number BIGINT, asked_at TIMESTAMPTZ, asked_by TEXT)")
    connection.execute(f"ALTER TABLE theirs OWNER TO {operator.info.user}".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="outbox_pruned"):
        operator.execute("CREATE TRIGGER mine AFTER INSERT ON theirs EXECUTE FUNCTION outbox_pruned()")


def test_long_and_strange_names_are_cut_and_escaped(connection: psycopg.Connection[Any]) -> None:
    ask_pause(connection, NAME, paused=True, on_behalf_of="<b>\0" + "x" * 1000)
    [entry] = read_trail(connection, NAME)
    assert entry.on_behalf_of == "<b>\\0" + "x" * 192 + "..."
    park_by_hand(connection, "k" * 50)
    ParkedRequests(connection, NAME).ask("discard", Choice(ids=tuple(range(999))), reason="y" * 5000)
    [entry, _] = read_trail(connection, NAME)
    assert entry.matched == "id 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
    assert entry.reason == "y" * 997 + "..."


def test_the_commands_write_and_show_it(connection: psycopg.Connection[Any], database: str, tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump({"data_source": database, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}))
    park_by_hand(connection, "a", "b")

    def run(*command: str) -> str:
        result = CliRunner().invoke(main, [*command, "-f", str(file)])
        assert result.exit_code == 0, result.output
        return result.output

    run("pause", "--on-behalf-of", "ada")
    run("resume")
    run("parked", "retry", "--cause", "refused", "--on-behalf-of", "a\x1b[31mb")
    assert json.loads(run("parked", "list", "--cause", "none", "--output", "json")) == []
    table = run("trail", "--limit", "2")
    assert "a\\x1b[31mb" in table
    assert "cause refused" in table
    assert "pause" not in table
    found = json.loads(run("trail", "--output", "json"))
    assert [(each["action"], each["on_behalf_of"], each["records"]) for each in found] == [
        ("retry", "a\x1b[31mb", 2),
        ("resume", None, None),
        ("pause", "ada", None),
    ]
