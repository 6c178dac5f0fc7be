"""Tables that would be harvested wrongly in silence: `init`, `check` and the harvester name what is wrong."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from hostile.town import Town
from support.harvesting import CHILD, Outbox, Process, wait_until

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.soundness import require_sound

STRANGE = {
    "ALTER TABLE outbox_parked SET UNLOGGED": "outbox_parked is unlogged",
    "CREATE RULE away AS ON DELETE TO outbox DO INSTEAD NOTHING": "outbox has the rule away",
    "ALTER TABLE outbox_shard ENABLE ROW LEVEL SECURITY": "outbox_shard has row level security",
    "ALTER TABLE outbox_commits RENAME TO mine; CREATE VIEW outbox_commits AS TABLE mine": "outbox_commits is a view",
    "CREATE TABLE child () INHERITS (outbox)": "outbox has tables that inherit from it",
    "GRANT TRIGGER ON outbox TO {curious}; SET ROLE {curious}; CREATE TRIGGER mine AFTER DELETE ON outbox"
    " FOR EACH ROW EXECUTE FUNCTION mine()": "outbox has the trigger mine",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey": "outbox has no primary key",
}


def test_what_an_outbox_must_not_have_is_named(town: Town) -> None:
    town.make_outbox()
    name = OutboxName.parse("outbox")
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as anybody:
        anybody.execute("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        anybody.execute(f"ALTER FUNCTION mine() OWNER TO {town.role('curious')}".encode())
        for changes, problem in STRANGE.items():
            with anybody.transaction(force_rollback=True):
                anybody.execute(changes.format(curious=town.role("curious")).encode())
                anybody.execute(f"RESET ROLE; SET LOCAL ROLE {town.role('harvest')}".encode())
                with pytest.raises(ConfigurationError, match=problem):
                    require_sound(anybody, name)
        anybody.execute(f"SET ROLE {town.role('harvest')}".encode())
        require_sound(anybody, name)


ALL_AT_ONCE = {
    "ALTER TABLE outbox_shard ENABLE ROW LEVEL SECURITY": "outbox_shard has row level security",
    "ALTER TABLE outbox_parked SET UNLOGGED": "outbox_parked is unlogged",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey": "outbox has no primary key",
    "CREATE TABLE parent (LIKE outbox_trouble) PARTITION BY LIST (member);"
    "ALTER TABLE parent ATTACH PARTITION outbox_trouble DEFAULT": "outbox_trouble is a partition",
    "CREATE TABLE child () INHERITS (outbox_adopted)": "outbox_adopted has tables that inherit from it",
    "CREATE FOREIGN DATA WRAPPER far; CREATE SERVER away FOREIGN DATA WRAPPER far; DROP TABLE outbox_commits;"
    "CREATE FOREIGN TABLE outbox_commits (app_id text) SERVER away": "outbox_commits is a foreign table",
    "ALTER TABLE outbox_archive DROP COLUMN kafka_value": "outbox_archive has no column kafka_value character varying",
}


def test_check_names_everything_that_an_outbox_must_not_have(town: Town) -> None:
    town.make_outbox(purge="archive")
    before = town.command("harvest", "check", purge="archive")
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        for changes in ALL_AT_ONCE:
            superuser.execute(changes.encode())
    found = town.command("harvest", "check", status=1, purge="archive")
    for problem in ALL_AT_ONCE.values():
        assert problem in found
        assert problem not in before


def test_row_security_in_mid_term_stops_the_harvest_and_says_so(town: Town) -> None:
    """A policy hides some rows, or all: rather none is published than those that are seen."""
    town.make_outbox()
    outbox = Outbox(town.dsn("owner"), town.bootstrap, town.topic)
    config = {"data_source": town.dsn("harvest"), "kafka": {"bootstrap.servers": town.bootstrap}}
    harvester = Process(CHILD, first_line={"config": config})
    try:
        outbox.stash(10)
        wait_until(lambda: outbox.left() == 0, doing=f"harvesting: {harvester.events}")
        outbox.query("CREATE POLICY few ON outbox USING (kafka_key <> 'k1')")
        outbox.query("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        outbox.stash(10, start=10)
        wait_until(lambda: "row-level security" in str(harvester.events), doing=f"an error: {harvester.events}")
        assert "Disable it" in str(harvester.events)
        assert outbox.left() == 10
        assert "outbox has row level security" in town.command("harvest", "check", status=1)
        outbox.query("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY")
        wait_until(lambda: outbox.left() == 0, doing=f"harvesting again: {harvester.events}")
        assert outbox.by_key() == {f"k{key}": [key, key + 10] for key in range(10)}
    finally:
        harvester.end()


async def test_nobody_harvests_while_a_trigger_may_keep_what_is_parked(town: Town) -> None:
    town.make_outbox()
    table = PostgresTable(town.dsn("harvest"), OutboxName.parse("outbox"), Limits())
    await table.take_over(uuid.uuid4())
    with town.connect("owner") as owner:
        owner.execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        owner.execute("CREATE TRIGGER keep BEFORE DELETE ON outbox_parked FOR EACH ROW EXECUTE FUNCTION keep()")
    problem = "outbox_parked has the trigger keep"
    with pytest.raises(ConfigurationError, match=problem):
        await table.take_over(uuid.uuid4())
    await table.close()
    assert problem in town.command("harvest", "check", status=1)
    assert problem in town.command("harvest", "harvest", "--until", "drained", status=1)
