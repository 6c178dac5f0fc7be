"""An outbox gets another name: as a whole, or after its table got one alone."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest
from support.harvesting import CALM, GOHARVEST_TABLE, Outbox, Process
from support.leading import Leader

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import ConfigurationError, OutboxError, OutboxMissingError
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.renaming import rename_outbox
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.postgres.slots import make_indexes, missing_indexes
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.stash import stash
from airflow_outbox.values.records import OutboxRecord

OLD, NEW = OutboxName.parse("app.outbox"), OutboxName.parse("app.events")
MONTH = 30 * 86400.0


def names(connection: psycopg.Connection[Any]) -> set[str]:
    """What the relations, functions and schemas are called that belong to an outbox."""
    rows = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'app'::regnamespace"
        " UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'app'::regnamespace"
        " UNION ALL SELECT nspname FROM pg_namespace WHERE nspname LIKE 'app\\_%'"
    )
    return {name for (name,) in rows}


def complete(connection: psycopg.Connection[Any], name: OutboxName) -> None:
    """Make an outbox with all that it can have."""
    init_outbox(connection, name, archive_retention=MONTH, stash_function=True)
    make_indexes(connection, name)


@pytest.fixture
def made(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    complete(connection, OLD)
    return connection


@pytest.mark.parametrize("alone_first", [False, True])
def test_all_that_belongs_to_it_has_the_new_name_and_keeps_what_it_holds(
    made: psycopg.Connection[Any], alone_first: bool
) -> None:
    before, found = OutboxTable(made, OLD).identity(), names(made)
    stash(made, OutboxRecord("t", "k", "waits"), outbox="app.outbox")
    made.execute(
        "INSERT INTO app.outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
        " kafka_header_values, transaction_id, incarnation)"
        " SELECT id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values, transaction_id, 1"
        " FROM app.outbox"
    )
    if alone_first:
        made.execute("ALTER TABLE app.outbox RENAME TO events")
    done = rename_outbox(made, OLD, NEW)
    assert done == [
        f"renamed what is beside {OLD} to {NEW}" if alone_first else f"renamed {OLD} to {NEW} and all beside it"
    ]
    assert names(made) == {name.replace("outbox", "events", 1) for name in found}
    assert OutboxTable(made, NEW).identity() == before
    assert made.execute("SELECT kafka_value FROM app.events").fetchall() == [("waits",)]
    assert made.execute("SELECT count(*) FROM app.events_parked").fetchall() == [(1,)]
    assert init_outbox(made, NEW, archive_retention=MONTH, stash_function=True) == []
    assert missing_indexes(made, NEW) == []
    with made.transaction():
        made.execute("SELECT app.events_stash('t', 'k', 'v')")
    # The old name is free for another outbox.
    complete(made, OLD)
    assert OutboxTable(made, OLD).identity().outbox_id != before.outbox_id
    assert OutboxTable(made, NEW).identity() == before


def test_the_trail_says_who_renamed_it(made: psycopg.Connection[Any]) -> None:
    rename_outbox(made, OLD, NEW, on_behalf_of="ada")
    made.execute("ALTER TABLE app.events RENAME TO third")
    rename_outbox(made, NEW, OutboxName.parse("app.third"))
    third = OutboxName.parse("app.third")
    made.execute("CREATE TABLE app.fourth_trail ()")
    with pytest.raises(ConfigurationError, match="fourth_trail is there already"):
        rename_outbox(made, third, OutboxName.parse("app.fourth"))
    found = read_trail(made, third)
    assert [(each.action, each.matched, each.on_behalf_of, each.asked_by) for each in found] == [
        ("rename", "events to third", None, made.info.user),
        ("rename", "outbox to events", "ada", made.info.user),
    ]
    with pytest.raises(psycopg.errors.CheckViolation):
        made.execute("INSERT INTO app.third_trail (action) VALUES ('anything')")


def test_tables_of_another_version_are_renamed_without_a_word_in_the_trail(made: psycopg.Connection[Any]) -> None:
    """Its migration may write the list of actions again."""
    made.execute("UPDATE app.outbox_state SET schema_version = %s", [SCHEMA_VERSION - 1])
    rename_outbox(made, OLD, NEW)
    assert read_trail(made, NEW) == []


def test_roles_keep_their_rights(made: psycopg.Connection[Any], database: str) -> None:
    role = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    made.execute(f"CREATE ROLE {role}".encode())
    try:
        for kind in ("stash", "look", "job"):
            for statement in grant_statements(made, OLD, kind, str(role)):  # type: ignore[arg-type]
                made.execute(statement.encode())
        rename_outbox(made, OLD, NEW)
        made.execute(f"SET ROLE {role}".encode())
        with made.transaction():
            made.execute("SELECT app.events_stash('t', 'k', 'v')")
            made.execute("SELECT * FROM app.events_parked")
            made.execute("CREATE TABLE app_events_staging.mine ()")
        made.execute("RESET ROLE")
    finally:
        made.execute("RESET ROLE")
        made.execute(f"DROP OWNED BY {role}".encode())
        made.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("by", ["trigger", "sequence"])
def test_init_refuses_both_halves_of_a_table_that_was_renamed_alone(
    connection: psycopg.Connection[Any], by: str
) -> None:
    if by == "sequence":  # goharvest's table has no trigger
        connection.execute("CREATE SCHEMA app")
        connection.execute(GOHARVEST_TABLE.format("app.outbox"))
    init_outbox(connection, OLD)
    if by == "trigger":
        connection.execute("ALTER SEQUENCE app.outbox_id_seq RENAME TO numbers")
    connection.execute("ALTER TABLE app.outbox RENAME TO events")
    found = names(connection)
    for name in (OLD, NEW):
        with pytest.raises(ConfigurationError, match=r"Run `airflow-outbox rename app.outbox app.events`"):
            init_outbox(connection, name)
    assert names(connection) == found
    rename_outbox(connection, OLD, NEW)
    assert init_outbox(connection, NEW) == []


def test_init_says_so_where_the_table_is_gone(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, OLD)
    connection.execute("DROP TABLE app.outbox CASCADE")
    with pytest.raises(ConfigurationError, match=r'no table "app"."outbox", but "app"."outbox_state" .*outbox_parked'):
        init_outbox(connection, OLD)
    with pytest.raises(ConfigurationError, match="is not what it was renamed to"):
        rename_outbox(connection, OLD, NEW)


def test_other_outboxes_and_copies_are_not_taken_for_renamed_ones(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, OLD)
    connection.execute("CREATE TABLE app.events (LIKE app.outbox INCLUDING DEFAULTS INCLUDING INDEXES)")
    assert init_outbox(connection, NEW)[0].startswith(f"migrated {NEW} from schema version 0")
    connection.execute("CREATE TABLE app.other_state (outbox_id int, schema_version int)")
    assert init_outbox(connection, OutboxName.parse("app.third"))[0].startswith("created")
    assert init_outbox(connection, OLD) == []


def test_what_can_not_be_renamed_is_left_as_it_is(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, OLD)
    connection.execute("CREATE TABLE app.taken ()")
    connection.execute("CREATE TABLE app.half_trail ()")
    connection.execute("CREATE SCHEMA elsewhere")
    found = names(connection)
    for old, new, error, says in (
        ("app.outbox", "app.outbox", ConfigurationError, "has this name"),
        ("app.outbox", "app.taken", ConfigurationError, "taken is there already"),
        ("app.outbox", "app.half", ConfigurationError, "half_trail is there already"),
        ("app.outbox", "elsewhere.outbox2", ConfigurationError, "in another schema"),
        ("app.nothing", "app.events", OutboxMissingError, "there is no outbox"),
    ):
        with pytest.raises(error, match=says):
            rename_outbox(connection, OutboxName.parse(old), OutboxName.parse(new))
    assert names(connection) == found


def test_an_outbox_that_somebody_leads_is_not_renamed(database: str) -> None:
    name, new = OutboxName.parse("outbox"), OutboxName.parse("events")
    with closing(Leader(database)) as leader, closing(connect(database, purpose="test")) as connection:
        leader.beat()
        with pytest.raises(ConfigurationError, match=r"test leads .*Stop its harvesters first"):
            rename_outbox(connection, name, new, silence=600)
        leader.connection.execute("UPDATE outbox_shard SET heartbeat_at = now() - interval '1 hour'")
        rename_outbox(connection, name, new)


def test_a_table_that_somebody_uses_is_not_waited_for_long(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as busy:
        init_outbox(connection, OLD)
        busy.execute("SELECT FROM app.outbox")
        with pytest.raises(OutboxError, match="waited too long for a lock"):
            rename_outbox(connection, OLD, NEW)
        assert OutboxTable(connection, OLD).identity()


def test_harvesting_goes_on_under_the_new_name(
    outbox: Outbox, start: Any, kafka: EmbeddedKafka, connection: psycopg.Connection[Any]
) -> None:
    outbox.stash(20)
    first: Process = start(child=True, until="drained", limits=CALM)
    first.ends()
    outbox.stash(20, start=20)
    assert rename_outbox(connection, OutboxName.parse("outbox"), OutboxName.parse("events"))
    with connection.transaction():
        stash(connection, [OutboxRecord(outbox.topic, f"k{n % 10}", str(n)) for n in range(40, 60)], outbox="events")
    second: Process = start(child=True, until="drained", outbox_table="events", limits=CALM)
    second.ends()
    assert sorted(int(message.value() or b"") for message in outbox.committed()) == list(range(60))
