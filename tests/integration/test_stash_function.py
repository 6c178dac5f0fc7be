"""The function that stashes a record in one call: the same rows and rules as stash(), with the caller's own rights."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue, StringDataRightTruncation
from psycopg.types.json import Json

from airflow_outbox import Ticket, stash
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox

NAME = OutboxName.parse("outbox")
COLUMNS = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, transaction_id::text"


def call(connection: psycopg.Connection[Any], *arguments: Any, outbox: str = "outbox") -> str:
    places = ", ".join(["%s"] * len(arguments))
    row = connection.execute(f"SELECT {outbox}_stash({places})", arguments).fetchone()  # type: ignore[call-overload]
    return str(row[0])


def test_it_stashes_as_the_library_does(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert 'created the function "outbox_stash"' in init_outbox(connection, NAME, stash_function=True)
        assert init_outbox(connection, NAME) == []
        ticket = call(connection, "t", "17", 'käse "x" \\', Json([["same", "1"], ["same", '"2"']]))
        assert call(connection, "t", "17", None) == ticket
        call(connection, "t", "17", "", Json({"b": "1", "a": "2"}))
        call(connection, "t", "17", "", Json(None))
        assert Ticket.parse(ticket) == stash(connection, [])
        stashed = connection.execute(f"SELECT {COLUMNS} FROM outbox ORDER BY id").fetchall()  # type: ignore[call-overload]
    number = ticket.split("/")[2]
    assert stashed == [
        ("t", "17", 'käse "x" \\', ["same", "same"], ["1", '"2"'], number),
        ("t", "17", None, [], [], number),
        ("t", "17", "", ["b", "a"], ["1", "2"], number),
        ("t", "17", "", [], [], number),
    ]


def test_bytes(database: str) -> None:
    with psycopg.connect(database) as connection:
        name = OutboxName.parse('"Raw"."out%box"')
        init_outbox(connection, name, key_type="bytea", value_type="bytea", header_type="bytea", stash_function=True)
        connection.execute("""SELECT "Raw"."out%box_stash"('t', '\\xff', '\\x00', '{"h": "ä"}')""")
        row = connection.execute('SELECT kafka_key, kafka_value, kafka_header_values FROM "Raw"."out%box"').fetchone()
    assert row == (b"\xff", b"\x00", ["ä".encode()])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a b", "k", "v"), "topic: 'a b' is not a legal name"),
        (("t\n", "k", "v"), "topic: "),
        (("..", "k", "v"), "topic: "),
        (("t" * 250, "k", "v"), "topic: "),
        (("__x", "k", "v"), "topic: "),
        ((None, "k", "v"), "topic: null"),
        (("t", None, "v"), "key: null"),
        (("t", "k", "v", Json("x")), "headers: "),
        (("t", "k", "v", Json({"": "x"})), "headers: "),
        (("t", "k", "v", Json({"h": 1})), "headers: "),
        (("t", "k", "v", Json({"h": None})), "headers: "),
        (("t", "k", "v", Json(["h", "x"])), "headers: "),
        (("t", "k", "v", Json([["h", "x", "y"]])), "headers: "),
        (("t", "k", "v", Json([{"h": "x"}])), "headers: "),
    ],
)
def test_it_refuses_what_the_library_refuses(function: psycopg.Connection[Any], arguments: Any, says: str) -> None:
    with pytest.raises(InvalidParameterValue, match=says) as caught:
        call(function, *arguments)
    assert caught.value.diag.message_hint == "Nothing was written. Correct the argument."


@pytest.fixture(scope="module")
def function(database_server: str) -> Any:
    """A connection to an outbox with the function, for tests that write nothing."""
    with psycopg.connect(database_server, autocommit=True) as connection:
        schema = f"s{uuid4().hex}"
        connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[call-overload]
        connection.execute(f"SET search_path = {schema}")  # type: ignore[call-overload]
        init_outbox(connection, NAME, stash_function=True)
        yield connection
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        connection.execute(f"DROP SCHEMA {schema}, {schema}_outbox_staging CASCADE")  # type: ignore[call-overload]


def test_a_key_that_is_too_long_is_not_cut(function: psycopg.Connection[Any]) -> None:
    with pytest.raises(StringDataRightTruncation):
        call(function, "t", "k" * 101, "v")


def test_only_a_role_that_may_stash_may_call_it(database: str) -> None:
    role = f"writer_{uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")  # type: ignore[call-overload]
        try:
            init_outbox(owner, NAME)
            assert not any("FUNCTION" in line for line in grant_statements(owner, NAME, "stash", role))
            init_outbox(owner, NAME, stash_function=True)
            with psycopg.connect(make_conninfo(database, user=role, password="p"), autocommit=True) as writer:
                with pytest.raises(InsufficientPrivilege, match="for function"):
                    call(writer, "t", "k", "v")
                for line in grant_statements(owner, NAME, "stash", role):
                    owner.execute(line.encode())
                assert Ticket.parse(call(writer, "t", "k", "v"))
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]


def test_somebody_elses_function_is_refused(database: str) -> None:
    role = f"other_{uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}")  # type: ignore[call-overload]
        try:
            init_outbox(owner, NAME)
            owner.execute("CREATE FUNCTION outbox_stash() RETURNS text LANGUAGE sql AS $$SELECT ''$$")
            owner.execute(f"ALTER FUNCTION outbox_stash() OWNER TO {role}")  # type: ignore[call-overload]
            with pytest.raises(ConfigurationError, match=f"belongs to {role}.*Drop the function"):
                init_outbox(owner, NAME, stash_function=True)
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[call-overload]
