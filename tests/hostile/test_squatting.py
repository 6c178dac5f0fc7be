"""Names that another role has taken beforehand: `init` refuses, and what runs goes on and says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hostile.town import Town
from support.harvesting import CHILD, GOHARVEST_TABLE, Outbox, Process, wait_until

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

TRIGGER = "FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
TAKEN = {
    "outbox": GOHARVEST_TABLE.strip().removeprefix("CREATE "),
    "outbox_state": "TABLE {} (id bigint)",
    "outbox_shard": "TABLE {} (id bigint)",
    "outbox_ledger": "TABLE {} (id bigint)",
    "outbox_cluster": "TABLE {} (id bigint)",
    "outbox_owed": "TABLE {} (id bigint)",
    "outbox_owed_rows": "TABLE {} (id bigint)",
    "outbox_parked": "TABLE {} (id bigint)",
    "outbox_undeleted": "TABLE {} (id bigint)",
    "outbox_trouble": "TABLE {} (id bigint)",
    "outbox_member": "TABLE {} (id bigint)",
    "outbox_positions": "TABLE {} (id bigint)",
    "outbox_history": "TABLE {} (id bigint)",
    "outbox_trail": "TABLE {} (id bigint)",
    "outbox_published": "VIEW {} AS SELECT 1",
    "outbox_commits": "SEQUENCE {}",
    "outbox_adopted": "TYPE {} AS ENUM ()",
    "outbox_asked": TRIGGER,
    "outbox_pruned": TRIGGER,
}


def test_init_refuses_names_that_are_taken(town: Town) -> None:
    with town.connect("curious") as curious:
        for name, thing in TAKEN.items():
            curious.execute(f"CREATE {thing.format(name)}".encode())
            said = town.command("owner", "init", status=1)
            found = f"is there and belongs to {curious.info.user}" if name == "outbox" else "already exists"
            assert f'"{name}" {found}' in said
            curious.execute(f"DROP {thing.split()[0]} {name}".encode())
    town.make_outbox()


def test_a_table_that_is_there_already_must_be_the_owners(town: Town) -> None:
    """`outbox_archive`, made beforehand, would get all that is published."""
    problem = f"outbox_archive belongs to {town.role('curious')}"
    with town.connect("curious") as curious:
        curious.execute("CREATE TABLE outbox_archive (id bigint)")
        assert problem in town.command("owner", "init", status=1, purge="archive")
        curious.execute("DROP TABLE outbox_archive")
        town.make_outbox()
        curious.execute("CREATE TABLE outbox_archive (id bigint)")
        curious.execute(f"GRANT ALL ON outbox_archive TO {town.role('harvest')}, {town.role('owner')}".encode())
    assert problem in town.command("owner", "init", status=1, purge="archive")
    assert problem in town.command("harvest", "harvest", "--until", "drained", status=1, purge="archive")
    assert problem in town.command("harvest", "check", status=1, purge="archive")


def test_a_day_of_the_archive_whose_name_is_taken_delays_nothing(town: Town) -> None:
    tomorrow = f"outbox_archive_{datetime.now(UTC) + timedelta(days=1):%Y%m%d}"
    town.make_outbox()
    with town.connect("curious") as curious, town.connect("owner") as owner:
        curious.execute(f"CREATE TABLE {tomorrow} (id bigint)".encode())
        assert f'"{tomorrow}" already exists' in town.command("owner", "init", status=1, purge="archive")
        curious.execute(f"DROP TABLE {tomorrow}".encode())
        town.make_outbox(purge="archive")
        owner.execute(f"DROP TABLE {tomorrow}".encode())
        curious.execute(f"CREATE TABLE {tomorrow} (id bigint)".encode())
    outbox = Outbox(town.dsn("owner"), town.bootstrap, town.topic)
    kafka = {"bootstrap.servers": town.bootstrap}
    config = {"data_source": town.dsn("owner"), "kafka": kafka, "purge": "archive"}
    harvester = Process(CHILD, first_line={"config": config})
    try:
        wait_until(lambda: tomorrow in str(harvester.events), doing=f"an error: {harvester.events}")
        outbox.stash(10)
        wait_until(lambda: outbox.left() == 0, doing=f"harvesting: {harvester.events}")
    finally:
        harvester.end()
    assert outbox.query("SELECT count(*) FROM outbox_archive") == [(10,)]
    assert "has no partition for tomorrow" in town.command("owner", "check", status=0, purge="archive")


def test_a_function_that_was_there_leaves_nobody_a_right(town: Town) -> None:
    """It runs as the owner of the outbox. A trigger of it on somebody's own table would let him act as the owner."""
    with town.connect("curious") as curious:
        curious.execute(f"CREATE {TRIGGER.format('outbox_loaded')}".encode())
        curious.execute(f"GRANT EXECUTE ON FUNCTION outbox_loaded() TO {town.role('job')}".encode())
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        init_outbox(superuser, OutboxName.parse("outbox"))
    with town.connect("job") as job:
        job.execute("CREATE TABLE own (id bigint)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            job.execute("CREATE TRIGGER mine AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION outbox_loaded()")
