"""An outbox of schema version 6, in which all facts had one home, is migrated; against a real Postgres."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from support.harvesting import PATIENCE, wait_until
from support.homes import HOMES, homes, row
from support.leading import NAME

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.errors import FencedError, OutboxMissingError
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.schema import Role, grant_statements, init_outbox
from airflow_outbox.postgres.statements import composed
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.values.fence import Flushed, LedgerPosition
from airflow_outbox.values.records import Snapshot

VERSION_6 = (Path(__file__).parents[1] / "support/version_6.sql").read_text("utf-8")
NEW = (
    *HOMES,
    "outbox_cluster",
    "outbox_owed",
    "outbox_owed_rows",
    "outbox_undeleted",
    "outbox_trouble",
    "outbox_member",
    "outbox_positions",
    "outbox_history",
    "outbox_trail",
)
WITNESS = LedgerPosition("topic", 7, 40, 99)
FACTS_OF_VERSION_6 = """
UPDATE outbox_leader
SET incarnation = 3, view = '00000000-0000-0000-0000-000000000001', begun_view = '00000000-0000-0000-0000-000000000002',
    backends = '[{"pid": 1, "started": "2026-01-01T00:00:00+00:00"}]', member = 'member', took_over_at = '2026-01-01',
    heartbeat_at = '2026-01-02', published = 11, last_error = 'error', last_error_at = '2026-01-03', in_flight = 12,
    rate = 1.5, paused = true, handover_asked_at = '2026-01-04', delivery = 'exactly_once', highest_id = 99, beats = 13,
    system_identifier = (SELECT system_identifier FROM pg_control_system()),
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
    table_oid = 'outbox'::regclass, database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
    ledger_topic_id = 'topic', witnessed_batch = 7, ledger_offset = 40, transactional_ids = '{one,two}',
    watermark = pg_current_snapshot(), covered_batch = 6, topics = '{"t": 5}', uncovered = '{"t": 1}'
"""
GRANTS_OF_VERSION_6 = {
    "stash": [
        "GRANT INSERT (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,"
        " kafka_partition) ON outbox TO {role}",
        "GRANT USAGE ON SEQUENCE outbox_id_seq TO {role}",
        "GRANT SELECT (shard, outbox_id, incarnation) ON outbox_leader TO {role}",
        "GRANT SELECT (shard, outbox_id, incarnation, delivery, watermark, doubt, secret) ON outbox_published"
        " TO {role}",
        "GRANT SELECT (transaction_id) ON outbox TO {role}",
        "GRANT SELECT (transaction_id, incarnation, reason, discarded_at) ON outbox_parked TO {role}",
    ],
    "harvest": [
        "GRANT SELECT, DELETE, UPDATE (leader_id) ON outbox TO {role}",
        "GRANT SELECT ON SEQUENCE outbox_id_seq TO {role}",
        "GRANT SELECT, UPDATE ON outbox_leader TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_parked TO {role}",
        "GRANT SELECT ON outbox_published TO {role}",
    ],
    "look": [
        "GRANT SELECT ON outbox, outbox_leader, outbox_commits, outbox_adopted, outbox_parked, outbox_published"
        " TO {role}",
    ],
    "operate": [
        "GRANT SELECT ON outbox, outbox_leader, outbox_commits, outbox_adopted, outbox_parked, outbox_published"
        " TO {role}",
        "GRANT UPDATE (paused, handover_asked_at) ON outbox_leader TO {role}",
        "GRANT UPDATE (requested, request_reason) ON outbox_parked TO {role}",
    ],
}
LEFT_BY_VERSION_6 = {
    "stash": {("outbox_shard", column, "SELECT") for column in ("shard", "outbox_id", "incarnation")},
    "harvest": {("outbox_shard", column, "UPDATE") for column in ("shard", "outbox_id", "incarnation", "secret")}
    | {("outbox_shard", "handover_asked_at", "UPDATE")}
    | {("outbox_ledger", column, "UPDATE") for column in ("shard", "cluster")}
    | {
        ("outbox_state", column, "UPDATE")
        for column in ("is_only", "outbox_id", "schema_version", "incarnation", "secret", "paused", "paused_at")
    },
}
"""Rights that a migrated role has beyond what `grant` gives: it had them on the row that all was in."""
STATEMENTS_OF_VERSION_6 = {
    "take over": "UPDATE outbox_leader SET view = gen_random_uuid() WHERE shard = 0 RETURNING true",
    "read the fence": "SELECT paused, outbox_id, watermark FROM outbox_leader WHERE shard = 0",
    "keep alive": "UPDATE outbox_leader SET heartbeat_at = now(), witnessed_batch = 7 WHERE shard = 0",
    "purge": "WITH fence AS MATERIALIZED (SELECT FROM outbox_leader WHERE shard = 0 FOR SHARE) DELETE FROM outbox"
    " WHERE EXISTS (SELECT FROM fence)",
    "mark": "WITH fence AS MATERIALIZED (SELECT FROM outbox_leader WHERE shard = 0 FOR SHARE) UPDATE outbox"
    " SET leader_id = gen_random_uuid() WHERE EXISTS (SELECT FROM fence)",
    "name a ticket": "SELECT outbox_id::text, incarnation FROM outbox_leader WHERE shard = 0",
    "enter a commit": "INSERT INTO outbox_commits (app_id, version, records, incarnation)"
    " VALUES ('a', 1, 1, (SELECT incarnation FROM outbox_leader WHERE shard = 0))",
    "pause": "UPDATE outbox_leader SET paused = true",
}


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def version_6(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A connection to a database with an outbox of version 6, which was harvested."""
    connection.execute(VERSION_6.encode())
    connection.execute(composed("transaction_id_trigger.guard", NAME, owner=sql.SQL("CURRENT_USER")))
    connection.execute(FACTS_OF_VERSION_6.encode())
    return connection


def privileges(connection: psycopg.Connection[Any], role: str) -> set[tuple[str, str, str]]:
    """A role's rights to the columns of the tables that have been added since."""
    rows = connection.execute(
        "SELECT attrelid::regclass::text, attname, privilege FROM pg_attribute"
        " CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS privilege"
        " WHERE attrelid = ANY(%s::regclass[]::oid[]) AND attnum > 0 AND NOT attisdropped"
        " AND has_column_privilege(%s::name, attrelid, attnum, privilege)",
        [list(NEW), role],
    ).fetchall()
    return {(table, column, privilege) for table, column, privilege in rows}


def test_the_facts_of_version_6_are_in_their_homes(version_6: psycopg.Connection[Any]) -> None:
    before = row(version_6, "SELECT * FROM outbox_leader")
    assert init_outbox(version_6, NAME) == [f"migrated {NAME} from schema version 6 to {SCHEMA_VERSION}"]
    after = homes(version_6)
    assert after.pop("schema_version") == SCHEMA_VERSION > before.pop("schema_version")
    assert (after.pop("is_only"), after.pop("cluster")) == (True, "primary")
    assert (after.pop("paused_at"), after.pop("published_at")) == (None, None)
    assert (after.pop("layout"), after.pop("shards"), after.pop("slots")) == (1, 1, None)
    new = ("shards_wanted", "shards_wanted_at", "slots_view", "lagging_after", "stalled_after", "silence")
    new += ("attach_wanted", "attach_how", "skipped")
    assert after.pop("attach_closing") is False
    clusters = ("membership", "promotions", "primary_cluster", "begun_primary")
    assert [after.pop(name) for name in clusters] == [1, 0, "primary", "primary"]
    assert {after.pop(name) for name in new} == {None}
    assert after == before
    state = row(version_6, "SELECT outbox_id, incarnation, secret, paused FROM outbox_state")
    assert state == {key: before[key] for key in ("outbox_id", "incarnation", "secret", "paused")}
    assert init_outbox(version_6, NAME) == []


def test_an_outbox_of_version_6_works_on(version_6: psycopg.Connection[Any], database: str) -> None:
    before = row(version_6, "SELECT * FROM outbox_leader")
    init_outbox(version_6, NAME)
    with version_6.transaction():
        ticket = stash(version_6, OutboxRecord("t", "k", "v"))
    assert (ticket.outbox_id, ticket.incarnation) == (before["outbox_id"], 3)
    with closing(OutboxTable(connect(database, purpose="test"), NAME)) as table:
        with pytest.raises(FencedError):
            table.take_over(uuid4(), [table.backend()], member="new", after=[uuid4()])
        view = uuid4()
        fence = table.take_over(view, [table.backend()], member="new", after=[before["view"]])
        assert (fence.request.paused, fence.incarnation, fence.begun_view) == (True, 3, before["begun_view"])
        assert (fence.witness, fence.transactional_ids, fence.beats) == (WITNESS, ("one", "two"), 13)
        assert fence.recorded == fence.present
        assert fence.flushed.watermark == Snapshot.parse(before["watermark"])
        table.begin(view, delivery="exactly_once", witness=fence.witness)
        snapshot = Snapshot.parse(row(version_6, "SELECT pg_current_snapshot()::text AS now")["now"])
        table.windows.purge_published(view, [1], snapshot, watermark=snapshot)
        table.heartbeat(view, published=1, in_flight=0, rate=0, flushed=Flushed(snapshot, 8, {}))
    assert published(version_6, ticket)


def test_roles_of_version_6_keep_their_rights(version_6: psycopg.Connection[Any], database: str) -> None:
    suffix = uuid4().hex[:8]
    old = {role: f"old_{role}_{suffix}" for role in GRANTS_OF_VERSION_6}
    new: dict[Role, str] = {
        "stash": f"s_{suffix}",
        "harvest": f"h_{suffix}",
        "look": f"l_{suffix}",
        "operate": f"o_{suffix}",
    }
    try:
        for name in (*old.values(), *new.values()):
            version_6.execute(f"CREATE ROLE {name}".encode())
        for role, statements in GRANTS_OF_VERSION_6.items():
            for statement in statements:
                version_6.execute(statement.format(role=old[role]).encode())
        init_outbox(version_6, NAME)
        for role, name in new.items():
            for statement in grant_statements(version_6, NAME, role, name):
                version_6.execute(statement.encode())
            granted, migrated = privileges(version_6, name), privileges(version_6, old[role])
            assert granted
            assert migrated - granted == LEFT_BY_VERSION_6.get(role, set())
            assert granted <= migrated
    finally:
        for name in (*old.values(), *new.values()):
            version_6.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_rights_that_an_owner_gave_by_hand_are_kept(version_6: psycopg.Connection[Any]) -> None:
    role = f"test_{uuid4().hex[:8]}"
    version_6.execute(f'CREATE ROLE "{role}"'.encode())
    version_6.execute(f"GRANT SELECT, DELETE ON outbox_leader TO {role} WITH GRANT OPTION".encode())
    version_6.execute(b"GRANT SELECT (halted, witnessed_batch, view) ON outbox_leader TO PUBLIC")
    try:
        init_outbox(version_6, NAME)
        [options] = version_6.execute(
            "SELECT has_table_privilege(%(role)s, 'outbox_state', 'DELETE WITH GRANT OPTION'),"
            " has_table_privilege(%(role)s, 'outbox_ledger', 'SELECT WITH GRANT OPTION')",
            {"role": role},
        ).fetchall()
        assert options == (True, True)
        assert privileges(version_6, "public") == {
            ("outbox_state", "halted", "SELECT"),
            ("outbox_ledger", "witnessed_batch", "SELECT"),
            ("outbox_shard", "view", "SELECT"),
        }
    finally:
        version_6.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_the_new_tables_belong_to_the_owner_of_the_old_one(version_6: psycopg.Connection[Any]) -> None:
    owner = f"test_{uuid4().hex[:8]}"
    version_6.execute(f"CREATE ROLE {owner}; GRANT ALL ON SCHEMA public TO {owner}".encode())
    try:
        for table in ("TABLE outbox", "TABLE outbox_leader", "VIEW outbox_published"):
            version_6.execute(f"ALTER {table} OWNER TO {owner}".encode())
        init_outbox(version_6, NAME)
        owners = "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE oid = ANY(%s::regclass[]::oid[])"
        assert version_6.execute(owners, [list(NEW)]).fetchall() == [(owner,)]
        function = "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'outbox_pruned'"
        assert version_6.execute(function.encode()).fetchall() == [(owner,)]
        assert len(version_6.execute("SELECT * FROM outbox_published").fetchall()) == 1
    finally:
        version_6.execute(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}".encode())


@pytest.mark.parametrize("statement", STATEMENTS_OF_VERSION_6.values(), ids=STATEMENTS_OF_VERSION_6)
@pytest.mark.parametrize("prepared", [False, True], ids=["new", "prepared"])
def test_a_release_that_knows_version_6_fails(
    version_6: psycopg.Connection[Any], database: str, statement: str, prepared: bool
) -> None:
    with closing(connect(database, purpose="test")) as old:
        old.execute("SET search_path = public")
        with old.transaction(force_rollback=True):
            old.execute(statement.encode(), prepare=prepared)
        with version_6.transaction():
            stash_by_hand = "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')"
            version_6.execute(stash_by_hand.encode())
        init_outbox(version_6, NAME)
        error = r'"outbox_leader" does not exist. Run `airflow-outbox init`'
        with pytest.raises(OutboxMissingError, match=error), translated(NAME):
            old.execute(statement.encode(), prepare=prepared)
    assert version_6.execute("SELECT count(*), count(leader_id) FROM outbox").fetchall() == [(1, 0)]


def test_an_old_leader_is_waited_for(version_6: psycopg.Connection[Any], database: str) -> None:
    """A value that it is about to write gets into the new home, too."""
    with psycopg.connect(database) as old:
        old.execute("UPDATE outbox_leader SET halted = 'restored', witnessed_batch = 8")
        migrating = threading.Thread(target=init_outbox, args=(version_6, NAME))
        migrating.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
        wait_until(lambda: old.execute(waits, [version_6.info.backend_pid]).fetchone() == (1,))
        old.commit()
        migrating.join(PATIENCE)
        assert not migrating.is_alive()
    found = homes(version_6)
    assert (found["halted"], found["witnessed_batch"]) == ("restored", 8)
