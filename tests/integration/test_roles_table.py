"""The table of docs/how-to/roles.md: what each role may do, each statement run as each role on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.older_postgres import OLDEST, RELEASES

from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import ROLES, grant_statements, init_outbox

PAGE = Path(__file__).parents[2] / "docs/how-to/roles.md"
NAME = OutboxName.parse("app.outbox")
_RECORD = "create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values"
_VALUES = "now(), 't', 'k', '{}', '{}'"
_PARKED = (
    f"INSERT INTO app.outbox_parked (id, {_RECORD}, transaction_id, incarnation) VALUES (7, {_VALUES}, '7'::xid8, 1)"
)
STATEMENTS = {
    "insert a record": f"INSERT INTO app.outbox ({_RECORD}) VALUES ({_VALUES})",
    "insert a record with a value": f"INSERT INTO app.outbox ({_RECORD}, kafka_value) VALUES ({_VALUES}, 'v')",
    "stash by the function": "SELECT app.outbox_stash('t', 'k', 'v', '{\"h\": \"x\"}')",
    "choose a record's partition": f"INSERT INTO app.outbox ({_RECORD}, kafka_partition) VALUES ({_VALUES}, 1)",
    "choose a record's id": f"INSERT INTO app.outbox ({_RECORD}, id) VALUES ({_VALUES}, 99)",
    "choose a record's transaction": f"INSERT INTO app.outbox ({_RECORD}, transaction_id) VALUES ({_VALUES},"
    " '9'::xid8)",
    "insert a record with a mark": f"INSERT INTO app.outbox ({_RECORD}, leader_id) VALUES ({_VALUES},"
    " gen_random_uuid())",
    "draw an id": "SELECT nextval('app.outbox_id_seq')",
    "set the ids back": "SELECT setval('app.outbox_id_seq', 1)",
    "see the last id": "SELECT last_value FROM app.outbox_id_seq",
    "read keys and values": "SELECT kafka_key, kafka_value FROM app.outbox",
    "read ids": "SELECT id FROM app.outbox",
    "count a transaction's records": "SELECT count(*) FROM app.outbox WHERE transaction_id = '9'::xid8",
    "mark a record": "UPDATE app.outbox SET leader_id = gen_random_uuid()",
    "change a value": "UPDATE app.outbox SET kafka_value = 'x'",
    "change a record's transaction": "UPDATE app.outbox SET transaction_id = '9'::xid8",
    "delete a record": "DELETE FROM app.outbox",
    "empty the outbox": "TRUNCATE app.outbox",
    "lock the outbox": "LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE",
    "make a trigger on the outbox": "CREATE TRIGGER mine AFTER INSERT ON app.outbox EXECUTE FUNCTION"
    " suppress_redundant_updates_trigger()",
    "change the outbox": "ALTER TABLE app.outbox ADD COLUMN mine integer",
    "drop the outbox": "DROP TABLE app.outbox CASCADE",
    "read the outbox's id": "SELECT outbox_id, incarnation FROM app.outbox_state",
    "read the outbox's row": "SELECT * FROM app.outbox_state",
    "read the secret": "SELECT secret FROM app.outbox_state",
    "read the fence row": "SELECT * FROM app.outbox_shard",
    "read the secret in the fence row": "SELECT secret FROM app.outbox_shard",
    "read what is known of the ledger": "SELECT * FROM app.outbox_ledger",
    "halt": "UPDATE app.outbox_state SET halted = 'why'",
    "change the outbox's id": "UPDATE app.outbox_state SET outbox_id = gen_random_uuid()",
    "change the secret": "UPDATE app.outbox_state SET secret = gen_random_uuid()",
    "change the fence": "UPDATE app.outbox_shard SET view = gen_random_uuid()",
    "change the fence row's copy of the secret": "UPDATE app.outbox_shard SET secret = gen_random_uuid()",
    "change what is known of the ledger": "UPDATE app.outbox_ledger SET witnessed_batch = 7",
    "pause": "UPDATE app.outbox_state SET paused = true, paused_at = now()",
    "ask for a handover": "UPDATE app.outbox_shard SET handover_asked_at = now()",
    "delete the fence row": "DELETE FROM app.outbox_shard",
    "ask how far all is out": "SELECT outbox_id, incarnation, delivery, watermark, doubt, secret FROM"
    " app.outbox_published",
    "read the counts of topics": "SELECT topics FROM app.outbox_published",
    "read whether records of a transaction are parked": ""
    "SELECT reason, discarded_at FROM app.outbox_parked WHERE transaction_id ="
    " '7'::xid8",
    "read parked records": "SELECT * FROM app.outbox_parked",
    "park a record": _PARKED,
    "ask for a retry": "UPDATE app.outbox_parked SET requested = 'retry'",
    "ask for a discard, with a reason": "UPDATE app.outbox_parked SET requested = 'discard', request_reason = 'why'",
    "ask in another's name": "UPDATE app.outbox_parked SET requested = 'discard', requested_by = 'somebody'",
    "discard a record": "UPDATE app.outbox_parked SET discarded_at = now()",
    "change a parked value": "UPDATE app.outbox_parked SET kafka_value = 'x'",
    "delete a parked record": "DELETE FROM app.outbox_parked",
    "read which records are undeleted": "SELECT * FROM app.outbox_undeleted",
    "note that a record is undeleted": "INSERT INTO app.outbox_undeleted (id, create_time, shard, published, reason)"
    " VALUES (1, now(), 0, true, 'why')",
    "forget that a record is undeleted": "DELETE FROM app.outbox_undeleted",
    "read what members can't do": "SELECT * FROM app.outbox_trouble",
    "tell what a member can't do": "INSERT INTO app.outbox_trouble (member, kind, error) VALUES ('m', 'kafka', 'e')",
    "take back what a member can't do": "DELETE FROM app.outbox_trouble",
    "read which members there are": "SELECT * FROM app.outbox_member",
    "tell that a member is there": "INSERT INTO app.outbox_member (member, release, started_at)"
    " VALUES ('m', '1', now())",
    "tell that a member has ended": "DELETE FROM app.outbox_member",
    "read what replicators of positions see": "SELECT * FROM app.outbox_positions",
    "tell what a replicator of positions sees": "INSERT INTO app.outbox_positions (member, report, groups)"
    " VALUES ('m', '{}', '[]')",
    "read the history of the last day": "SELECT * FROM app.outbox_history",
    "note how the outbox is doing": "INSERT INTO app.outbox_history (shard, slot, noted_at, state, rate)"
    " VALUES (0, 0, now(), 'healthy', 1)",
    "change what was noted": "UPDATE app.outbox_history SET state = 'healthy'",
    "delete what was noted": "DELETE FROM app.outbox_history",
    "read the trail": "SELECT * FROM app.outbox_trail",
    "enter a request in the trail": "INSERT INTO app.outbox_trail (action, on_behalf_of) VALUES ('pause', 'somebody')",
    "enter a request under another role's name": ""
    "INSERT INTO app.outbox_trail (action, asked_by) VALUES ('pause', 'x')",
    "enter a request of another time": "INSERT INTO app.outbox_trail (action, asked_at) VALUES ('pause', now())",
    "change the trail": "UPDATE app.outbox_trail SET on_behalf_of = 'somebody'",
    "delete from the trail": "DELETE FROM app.outbox_trail",
    "read the list of commits": "SELECT * FROM app.outbox_commits",
    "enter a commit": "INSERT INTO app.outbox_commits (app_id, version, records, incarnation) VALUES ('a', 1, 1, 1)",
    "enter a commit for another role": ""
    "INSERT INTO app.outbox_commits (app_id, version, records, owner) VALUES ('a', 1, 1,"
    " 'x')",
    "enter a commit of another transaction": ""
    "INSERT INTO app.outbox_commits (app_id, version, records, transaction_id) VALUES"
    " ('a', 1, 1, '9')",
    "change a commit": "UPDATE app.outbox_commits SET records = 7",
    "delete a commit": "DELETE FROM app.outbox_commits",
    "read what was adopted": "SELECT * FROM app.outbox_adopted",
    "enter an adoption": "INSERT INTO app.outbox_adopted (incarnation, differences, reason) VALUES (9, 'd', 'r')",
    "read the clusters": "SELECT * FROM app.outbox_cluster",
    "change a cluster's part": "UPDATE app.outbox_cluster SET part = 'owed', reason = 'why'",
    "add a cluster": "INSERT INTO app.outbox_cluster (name, part) VALUES ('west', 'backup')",
    "ask for a cluster": "UPDATE app.outbox_state SET attach_wanted = 'west', attach_how = 'reset'",
    "promote a cluster": "UPDATE app.outbox_state SET promotions = promotions + 1",
    "read what a cluster is owed": "SELECT entry FROM app.outbox_owed",
    "read the records that a cluster is owed": "SELECT kafka_value FROM app.outbox_owed_rows",
    "keep what a cluster is owed": "INSERT INTO app.outbox_owed (shard, batch, entry, size) VALUES (0, 1, '{}', 2)",
    "change what a cluster is owed": "UPDATE app.outbox_owed SET entry = '{}'",
    "forget what a cluster is owed": "DELETE FROM app.outbox_owed",
    "ask for another number of shards": "UPDATE app.outbox_state SET shards_wanted = 2",
    "give a shard other slots": "UPDATE app.outbox_shard SET slots = ARRAY[1]",
    "read the archive": "SELECT * FROM app.outbox_archive",
    "insert into the archive": "INSERT INTO app.outbox_archive (id, kafka_topic, create_time, kafka_header_keys, "
    " kafka_header_values,"
    " transaction_id, archived_at, view) VALUES (1, 't', now(), '{}', '{}', '7'::xid8, now(), gen_random_uuid())",
    "delete from the archive": "DELETE FROM app.outbox_archive",
    "make a table beside the outbox": "CREATE TABLE app.mine ()",
    "make a function beside the outbox": "CREATE FUNCTION app.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "make a table where jobs stage": "CREATE TABLE app_outbox_staging.mine ()",
    "grant what it has to others": "GRANT INSERT ON app.outbox TO PUBLIC",
}


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME, stash_function=True)
        with connection.transaction():
            archive = Archive(connection, NAME)
            archive.make()
            archive.tend(now=datetime.now(UTC), retention=86400)
        connection.execute(_PARKED.encode())
        yield connection


def is_allowed(connection: psycopg.Connection[Any], role: str, statement: str) -> bool:
    """Whether the statement succeeds as this role; what it does is undone."""
    try:
        with connection.transaction(force_rollback=True), connection.transaction():
            connection.execute(f'SET LOCAL ROLE "{role}"'.encode())
            with connection.transaction():
                connection.execute("SET LOCAL client_min_messages = 'error'")
                connection.execute(statement.encode())
                granted = connection.execute("SELECT has_table_privilege('public', 'app.outbox', 'INSERT')").fetchone()
                return not statement.startswith("GRANT") or granted == (True,)
    except psycopg.errors.InsufficientPrivilege:
        return False


@pytest.mark.parametrize(
    "database_server",
    [*(pytest.param(release, marks=pytest.mark.long) for release in RELEASES if release != OLDEST), OLDEST, "18"],
    indirect=True,
)
def test_the_table_says_what_each_role_may_do(connection: psycopg.Connection[Any], database: str) -> None:
    suffix = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    roles = {role: f"{role} {suffix}" for role in ROLES}
    try:
        for role, grantee in roles.items():
            connection.execute(f'CREATE ROLE "{grantee}"'.encode())
            for line in grant_statements(connection, NAME, role, grantee):
                connection.execute(line.encode())
        lines = [f"| statement | {' | '.join(f'`--{role}`' for role in ROLES)} |", "| --- |" + " --- |" * len(ROLES)]
        for name, statement in STATEMENTS.items():
            with connection.transaction(force_rollback=True):
                connection.execute(statement.encode())  # it is sound: its owner may
            marks = ("yes" if is_allowed(connection, grantee, statement) else "no" for grantee in roles.values())
            lines.append(f"| {name} | {' | '.join(marks)} |")
    finally:
        for grantee in roles.values():
            connection.execute(f'DROP OWNED BY "{grantee}"; DROP ROLE "{grantee}"'.encode())
    table = "\n".join(lines)
    assert table in PAGE.read_text("utf-8"), f"the page has another table than this:\n{table}"
