"""Whatever a role or a database has set: it changes nothing."""

from __future__ import annotations

import json
from contextlib import closing

import psycopg
import pytest
from hostile.town import Town

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.postgres.connection import connect

SETTINGS = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "search_path": "",
    "synchronous_commit": "off",
    "standard_conforming_strings": "off",
}
TIMEOUTS = ("idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout")


def test_no_time_out_that_a_database_has_set_ends_a_session_of_ours(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        known = owner.execute("SELECT name FROM pg_settings WHERE name = ANY(%s)", (list(TIMEOUTS),)).fetchall()
        for (name,) in known:
            owner.execute(f"ALTER DATABASE {owner.info.dbname} SET {name} = '1s'".encode())
    assert known
    with closing(connect(database, purpose="test")) as connection:
        assert [connection.execute(f"SHOW {name}".encode()).fetchone() for (name,) in known] == [("0",)] * len(known)


@pytest.mark.parametrize("search_path", ["''", "nowhere", '"$user"'])
def test_a_search_path_without_a_schema_is_named_with_its_remedy(town: Town, search_path: str) -> None:
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        for role in ("owner", "harvest", "look"):
            superuser.execute(f"ALTER ROLE {town.role(role)} SET search_path = {search_path}".encode())
    for role, command in {"owner": "init", "harvest": "check", "look": "status"}.items():
        said = " ".join(town.command(role, command, status=1).split())
        assert f"the search_path of role {town.role(role)} leads to no schema" in said
        assert "Give the schema in outbox_table, such as public.outbox" in said


def test_what_a_role_has_set_changes_nothing(town: Town) -> None:
    town.make_outbox()
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        for role in ("harvest", "look", "operate"):
            for name, value in SETTINGS.items():
                superuser.execute(f"ALTER ROLE {town.role(role)} SET {name} = '{value}'".encode())
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, OutboxRecord(town.topic, "k", "v"))
    settings = {"outbox_table": "public.outbox"}
    town.command("harvest", "harvest", "--until", "drained", **settings)
    with town.connect("stash") as app:
        assert published(app, ticket)
    [shard] = json.loads(town.command("look", "status", "--output", "json", **settings))["shards"]
    assert (shard["published"], shard["last_error"]) == (1, None)
    town.command("operate", "pause", **settings)
    town.command("operate", "parked list", **settings)
    assert "missing" not in town.command("harvest", "check", **settings)


def test_what_a_database_has_set_changes_nothing(town: Town) -> None:
    """Also to `init`. An application that stashes overrides what would refuse its own writes."""
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        for name, value in SETTINGS.items():
            superuser.execute(f"ALTER DATABASE {town.database} SET {name} = '{value}'".encode())
    settings = {"outbox_table": "public.outbox"}
    town.make_outbox(**settings)
    with psycopg.connect(town.dsn("stash"), options="-c default_transaction_read_only=off") as app:
        ticket = stash(app, OutboxRecord(town.topic, "k", "v"), outbox="public.outbox")
        app.commit()
        town.command("harvest", "harvest", "--until", "drained", **settings)
        assert published(app, ticket, outbox="public.outbox")
    [shard] = json.loads(town.command("look", "status", "--output", "json", **settings))["shards"]
    assert (shard["published"], shard["last_error"]) == (1, None)
    town.command("look", "status", **settings)
    town.command("operate", "resume", **settings)
    assert "missing" not in town.command("harvest", "check", **settings)
    assert "migrated" not in town.command("owner", "init", **settings)
