"""The outbox's tables: made, migrated, granted; against a real Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from support.harvesting import AS_OF_VERSION_4, GOHARVEST_TABLE
from support.leading import Leader

from airflow_outbox.errors import ConfigurationError, OutboxMissingError, PostgresError, SchemaVersionError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import ROLES, cost_of_transaction_id, grant_statements, init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.stash import stash
from airflow_outbox.values.records import OutboxRecord

NAMES = ["outbox", "app.outbox", '"My Schema"."Out ""box"', "Outbox", '"Ünïcode"']


@pytest.mark.parametrize("text", NAMES)
def test_init_makes_the_tables_under_any_name_and_is_idempotent(connection: psycopg.Connection[Any], text: str) -> None:
    name = OutboxName.parse(text)
    assert init_outbox(connection, name) == [
        f"created {name} and the tables beside it, schema version {SCHEMA_VERSION}"
    ]
    identity = OutboxTable(connection, name).identity()
    assert init_outbox(connection, name) == []
    assert OutboxTable(connection, name).identity() == identity


def test_two_outboxes_have_two_ids(connection: psycopg.Connection[Any]) -> None:
    names = [OutboxName.parse("a"), OutboxName.parse("b")]
    for name in names:
        init_outbox(connection, name)
    assert len({OutboxTable(connection, name).identity().outbox_id for name in names}) == 2


def table_shape(connection: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    columns = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)"
        " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table,),
    ).fetchall()
    constraints = connection.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass ORDER BY 1", (table,)
    ).fetchall()
    return columns + constraints


def test_migrating_goharvests_table_ends_where_schema_sql_begins(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE SCHEMA old")
    connection.execute(GOHARVEST_TABLE.format("old.outbox"))
    before = table_shape(connection, "old.outbox")
    old, new = OutboxName.parse("old.outbox"), OutboxName.parse("new.outbox")
    assert init_outbox(connection, old) == [f"migrated {old} from schema version 0 to {SCHEMA_VERSION}"]
    init_outbox(connection, new)
    tables = ("state", "shard", "ledger", "cluster", "owed", "owed_rows")
    for suffix in (*tables, "commits", "published", "undeleted", "trouble", "member", "history", "trail"):
        assert table_shape(connection, old.text(suffix)) == table_shape(connection, new.text(suffix))
    definitions = [
        connection.execute(f"SELECT pg_get_viewdef('{schema}.outbox_published')".encode()).fetchall()[0][0]
        for schema in ("old", "new")
    ]
    assert definitions[0].replace("old.", "new.") == definitions[1]
    assert table_shape(connection, "old.outbox") == before
    assert OutboxTable(connection, old).identity().incarnation == 1


def parked_indexes(connection: psycopg.Connection[Any], schema: str) -> set[str]:
    rows = connection.execute(
        "SELECT replace(indexdef, schemaname || '.', '') FROM pg_indexes"
        " WHERE schemaname = %(schema)s AND tablename = 'outbox_parked'",
        {"schema": schema},
    )
    return {definition for (definition,) in rows}


def test_version_3_gets_the_newest_indexes_columns_and_view(connection: psycopg.Connection[Any]) -> None:
    for schema in ("old", "new"):
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        init_outbox(connection, OutboxName.parse(f"{schema}.outbox"))
    connection.execute("SET search_path = old")
    connection.execute(AS_OF_VERSION_4.encode())
    connection.execute("DROP INDEX outbox_parked_transaction_id_idx, outbox_parked_cause_kafka_topic_idx")
    connection.execute("UPDATE outbox_leader SET schema_version = 3")
    connection.execute("RESET search_path")
    assert parked_indexes(connection, "old") != parked_indexes(connection, "new")
    init_outbox(connection, OutboxName.parse("old.outbox"))
    assert parked_indexes(connection, "old") == parked_indexes(connection, "new")
    for suffix in ("commits", "parked", "published"):
        assert table_shape(connection, f"old.outbox_{suffix}") == table_shape(connection, f"new.outbox_{suffix}")
    ids = connection.execute(
        "SELECT transactional_ids, database_oid, begun_view FROM old.outbox_state, old.outbox_shard, old.outbox_ledger"
    ).fetchall()
    assert ids == [(["the only one"], None, None)]


def test_our_column_comes_to_goharvests_table_only_when_asked_for(connection: psycopg.Connection[Any]) -> None:
    name = OutboxName.parse("outbox")
    connection.execute(GOHARVEST_TABLE.format("outbox"))
    connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
        " VALUES (now(), 't', 'k', ARRAY[]::text[], ARRAY[]::text[])"
    )
    init_outbox(connection, name)
    assert "transaction_id" not in OutboxTable(connection, name).columns
    assert "rewriting" in str(cost_of_transaction_id(connection, name))
    assert init_outbox(connection, name, transaction_id=True) == [f"added the column transaction_id to {name}"]
    assert init_outbox(connection, name, transaction_id=True) == []
    assert cost_of_transaction_id(connection, name) is None
    init_outbox(connection, OutboxName.parse("ours"))
    theirs, ours = (
        [row for row in table_shape(connection, t) if "transaction_id" in row[0]] for t in ("outbox", "ours")
    )
    assert theirs == ours


def test_the_outbox_keeps_goharvests_columns_as_they_are(connection: psycopg.Connection[Any]) -> None:
    connection.execute(GOHARVEST_TABLE.format("goharvest"))
    init_outbox(connection, OutboxName.parse("ours"))
    theirs = [row[:3] for row in table_shape(connection, "goharvest")[:8]]
    assert [row[:3] for row in table_shape(connection, "ours")[:8]] == theirs


def test_types_of_a_new_table(connection: psycopg.Connection[Any]) -> None:
    name = OutboxName.parse("outbox")
    init_outbox(connection, name, key_type="bytea", value_type="text", header_type="BYTEA")
    columns = OutboxTable(connection, name).columns
    assert [columns[f"kafka_{part}"].type for part in ("key", "value", "header_values")] == ["bytea", "text", "bytea[]"]
    with pytest.raises(ConfigurationError, match="jsonb"):
        init_outbox(connection, OutboxName.parse("other"), value_type="jsonb")


def test_a_table_that_is_no_outbox_is_left_alone(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE outbox (id BIGSERIAL PRIMARY KEY, payload TEXT)")
    with pytest.raises(ConfigurationError, match=r"no create_time.*Choose another name"):
        init_outbox(connection, OutboxName.parse("outbox"))
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("TABLE outbox_state")


def test_a_newer_schema_is_refused(connection: psycopg.Connection[Any]) -> None:
    name = OutboxName.parse("outbox")
    init_outbox(connection, name)
    connection.execute("UPDATE outbox_state SET schema_version = %s", (SCHEMA_VERSION + 1,))
    for attempt in (lambda: init_outbox(connection, name), OutboxTable(connection, name).identity):
        with pytest.raises(SchemaVersionError, match="newer airflow-outbox"):
            attempt()


def test_an_outbox_that_is_not_there_is_named(connection: psycopg.Connection[Any]) -> None:
    table = OutboxTable(connection, OutboxName.parse("nowhere.outbox"))
    with pytest.raises(OutboxMissingError, match="airflow-outbox init"):
        table.identity()
    with pytest.raises(OutboxMissingError, match="nowhere"):
        _ = table.columns


@contextmanager
def acting_as(connection: psycopg.Connection[Any], role: str) -> Iterator[None]:
    connection.execute(f'SET ROLE "{role}"')
    try:
        yield
    finally:
        connection.execute("RESET ROLE")


@pytest.mark.parametrize("transaction_id", [False, True])
def test_roles_of_a_table_that_goharvest_made_are_given_what_it_has(
    connection: psycopg.Connection[Any], transaction_id: bool
) -> None:
    connection.execute(GOHARVEST_TABLE.format("outbox"))
    name = OutboxName.parse("outbox")
    init_outbox(connection, name, transaction_id=transaction_id)
    for role in ROLES:
        with connection.transaction():
            connection.execute('CREATE ROLE "grantee"')
            for statement in grant_statements(connection, name, role, "grantee"):
                connection.execute(statement)  # type: ignore[call-overload]
            raise psycopg.Rollback


@pytest.fixture
def roles(connection: psycopg.Connection[Any], database: str) -> Iterator[dict[str, str]]:
    """An outbox in a schema of its own, with one role of each kind; the kinds' names map to the roles'."""
    name = OutboxName.parse("app.outbox")
    init_outbox(connection, name)
    suffix = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    roles = {role: f"{role} {suffix}" for role in ROLES}
    for role, grantee in roles.items():
        connection.execute(f'CREATE ROLE "{grantee}"')
        for statement in grant_statements(connection, name, role, grantee):
            connection.execute(statement)  # type: ignore[call-overload]
    yield roles
    for grantee in roles.values():
        connection.execute(f'DROP OWNED BY "{grantee}"')
        connection.execute(f'DROP ROLE "{grantee}"')


def test_the_stashing_role_can_insert_the_allowed_columns(
    connection: psycopg.Connection[Any], roles: dict[str, str]
) -> None:
    with acting_as(connection, roles["stash"]):
        ticket = stash(connection, OutboxRecord("t", "k", "v", {"h": "1"}, partition=1), outbox="app.outbox")
    row = connection.execute("SELECT kafka_key, kafka_partition, transaction_id::text FROM app.outbox").fetchone()
    assert row == ("k", 1, str(ticket.transaction_id))


FORBIDDEN_TO_STASH = [
    *(
        "INSERT INTO app.outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        f" {column})"
        f" VALUES (now(), 't', 'k', ARRAY[]::text[], ARRAY[]::text[], {value})"
        for column, value in {"id": "1", "transaction_id": "'1'::xid8", "leader_id": "gen_random_uuid()"}.items()
    ),
    "SELECT * FROM app.outbox",
    "SELECT kafka_value FROM app.outbox",
    "SELECT id FROM app.outbox",
    "UPDATE app.outbox SET kafka_value = ''",
    "UPDATE app.outbox SET leader_id = NULL",
    "DELETE FROM app.outbox",
    "TRUNCATE app.outbox",
    "SELECT * FROM app.outbox_state",
    "SELECT secret FROM app.outbox_state",
    "SELECT view FROM app.outbox_shard",
    "SELECT * FROM app.outbox_ledger",
    "UPDATE app.outbox_shard SET view = NULL",
    "DELETE FROM app.outbox_state",
    "SELECT * FROM app.outbox_commits",
    "INSERT INTO app.outbox_commits (app_id, version, records) VALUES ('a', 1, 1)",
    "SELECT setval('app.outbox_id_seq', 1)",
    "CREATE TABLE app.mine (id int)",
    "DROP TABLE app.outbox",
    "LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE",
]


@pytest.mark.parametrize("statement", FORBIDDEN_TO_STASH)
def test_the_stashing_role_can_do_nothing_else(
    connection: psycopg.Connection[Any], roles: dict[str, str], statement: str
) -> None:
    with (
        acting_as(connection, roles["stash"]),
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        connection.transaction(),
    ):
        connection.execute(statement)  # type: ignore[call-overload]
    with connection.transaction():
        connection.execute(statement)  # type: ignore[call-overload]  # the statement itself is sound: its owner may


def test_the_looking_role_reads_and_changes_nothing(connection: psycopg.Connection[Any], roles: dict[str, str]) -> None:
    with acting_as(connection, roles["look"]):
        for table in ("outbox", "outbox_state", "outbox_shard", "outbox_ledger", "outbox_commits"):
            connection.execute(f"SELECT * FROM app.{table}")  # type: ignore[call-overload]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"DELETE FROM app.{table}")  # type: ignore[call-overload]


def test_a_job_makes_tables_only_where_jobs_stage(connection: psycopg.Connection[Any], roles: dict[str, str]) -> None:
    with acting_as(connection, roles["job"]):
        connection.execute("CREATE TABLE app_outbox_staging.mine ()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE app.mine ()")
    with acting_as(connection, roles["stash"]), pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("CREATE TABLE app_outbox_staging.mine ()")


def test_init_refuses_a_schema_for_staging_of_somebody_else(
    connection: psycopg.Connection[Any], roles: dict[str, str]
) -> None:
    connection.execute(f'CREATE SCHEMA public_outbox_staging AUTHORIZATION "{roles["job"]}"'.encode())
    with pytest.raises(ConfigurationError, match=r"schema public_outbox_staging, in which jobs .* belongs to"):
        init_outbox(connection, OutboxName.parse("outbox"))


@pytest.mark.parametrize("schema", ["app", "with space", 'a"quote', "100%", "with\nnewline", "Ärger"])
def test_a_schema_may_be_called_anything(connection: psycopg.Connection[Any], schema: str) -> None:
    quoted = schema.replace('"', '""')
    name = OutboxName.parse(f'"{quoted}".outbox')
    init_outbox(connection, name)
    with connection.transaction():
        connection.execute('CREATE ROLE "grantee"')
        for role in ROLES:
            for statement in grant_statements(connection, name, role, "grantee"):
                connection.execute(statement.encode())
        raise psycopg.Rollback
    with connection.transaction():
        assert stash(connection, OutboxRecord("t", "k", "v"), outbox=name.text())
    assert OutboxTable(connection, name).identity().incarnation == 1


def test_a_missing_privilege_is_named_with_its_remedy(
    connection: psycopg.Connection[Any], roles: dict[str, str]
) -> None:
    with acting_as(connection, roles["stash"]), pytest.raises(PostgresError, match="airflow-outbox grant"):
        OutboxTable(connection, OutboxName.parse("app.outbox")).marks.holds_marks()


def test_a_trigger_that_names_no_schema_is_named_with_its_remedy(database: str) -> None:
    with closing(Leader(database)) as leader:
        leader.connection.execute(
            "CREATE TABLE seen (id bigint);"
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO seen VALUES (1); RETURN NULL; END $$;"
            "CREATE TRIGGER see AFTER DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION see()"
        )
        leader.stash(3)
        leader.purge()  # of no record
        leader.table.windows.purge_published(leader.view, [1, 2, 3], leader.watermark())
        said = leader.connection.execute("SELECT count(*), min(reason), max(reason) FROM outbox_undeleted").fetchone()
        assert said is not None
        records, reason, other = said
        assert (records, other) == (3, reason)
        assert re.search(r'"seen" does not exist \(PL/pgSQL function .*see\(\).*must name schemas', reason)
