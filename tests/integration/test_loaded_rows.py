"""Rows that are loaded with transaction ids of their own into an outbox that is being harvested, on real servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql
from support.harvesting import AS_OF_VERSION_4, CALM, COMMAND, GOHARVEST_TABLE, Outbox, Process, wait_until

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.check import examine
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.postgres.transaction_id_trigger import is_guarded

NAME = OutboxName.parse("outbox")
NUMBERS = "SELECT kafka_value::integer FROM outbox ORDER BY id"
OTHERS = "SELECT count(*) FROM outbox WHERE transaction_id <> xmin::text::xid8"


@pytest.fixture
def leading(outbox: Outbox, tmp_path: Path) -> Iterator[Process]:
    """A harvester that leads and has published records 0 to 9."""
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump({**outbox.settings, "limits": CALM}))
    process = Process([*COMMAND, "harvest", "-f", str(file)])
    process.wait_for("view")
    outbox.stash(10)
    wait_until(lambda: outbox.left() == 0)
    yield process
    process.end()


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("replication", [False, True], ids=["restored", "as replication does"])
def test_what_is_restored_from_a_dump_in_mid_term_is_published_once(
    outbox: Outbox, postgres: EmbeddedPostgres, tmp_path: Path, request: pytest.FixtureRequest, replication: bool
) -> None:
    outbox.stash(30, start=10)
    dump = tmp_path / "dump.sql"
    programs = postgres.programs
    dump.write_text(run(programs / "pg_dump", "--data-only", "--table=outbox", f"--dbname={outbox.database}"))
    with psycopg.connect(outbox.database) as connection:
        connection.execute("DELETE FROM outbox")
    leading: Process = request.getfixturevalue("leading")
    mode = "replica" if replication else "origin"
    setting = f"--command=SET session_replication_role = {mode}"
    run(programs / "psql", outbox.database, "--set=ON_ERROR_STOP=1", setting, f"--file={dump}")
    wait_until(lambda: outbox.left() == 0, doing="waiting for what was restored")
    outbox.stash(10, start=40)
    wait_until(lambda: outbox.left() == 0)
    assert sorted(number for _, number in outbox.published()) == list(range(50))
    assert leading.own_views() <= 0, "it was not in mid-term"


@pytest.mark.parametrize("transaction_id", [3, 2**40], ids=["past", "future"])
def test_what_is_copied_with_another_transactions_id_is_published_once(
    outbox: Outbox, leading: Process, connection: psycopg.Connection[Any], transaction_id: int
) -> None:
    connection.execute("CREATE TABLE backup AS TABLE outbox")
    connection.execute(
        "INSERT INTO backup"
        " SELECT nextval('outbox_id_seq'), now(), %s, 'k' || n %% 10, n::text, '{}', '{}', NULL, NULL, %s::text::xid8"
        " FROM generate_series(10, 39) AS n",
        [outbox.topic, transaction_id],
    )
    connection.execute("INSERT INTO outbox TABLE backup")
    wait_until(lambda: outbox.left() == 0, doing="waiting for what was copied")
    outbox.stash(10, start=40)
    wait_until(lambda: outbox.left() == 0)
    assert sorted(number for _, number in outbox.published()) == list(range(50))
    assert leading.own_views() <= 0, "it was not in mid-term"


def load(connection: psycopg.Connection[Any], *transaction_ids: int) -> None:
    with connection.cursor().copy("COPY outbox (kafka_topic, kafka_key, transaction_id) FROM STDIN") as copy:
        for number in transaction_ids:
            copy.write_row(("t", "k", number))


def others(connection: psycopg.Connection[Any]) -> int:
    """Rows that are of another transaction than the one that wrote them."""
    ((count,),) = connection.execute(OTHERS).fetchall()
    return int(count)


def test_each_row_is_of_the_transaction_that_wrote_it(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME)
    load(connection, 3, 2**40)
    with connection.transaction():
        load(connection, 3)
    connection.execute("SET session_replication_role = replica")
    load(connection, 4)
    assert others(connection) == 0


def test_who_may_insert_transaction_ids_need_not_be_allowed_to_update(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME)
    with connection.transaction():
        connection.execute("CREATE ROLE loader")
        connection.execute("GRANT INSERT ON outbox TO loader; GRANT USAGE ON SEQUENCE outbox_id_seq TO loader")
        connection.execute("GRANT CREATE ON SCHEMA public TO loader")
        connection.execute("SET LOCAL ROLE loader")
        load(connection, 3)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("UPDATE outbox SET transaction_id = '5'")
        connection.execute("CREATE TABLE own (id bigint, transaction_id xid8)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="outbox_loaded"), connection.transaction():
            connection.execute("CREATE TRIGGER t AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION outbox_loaded()")
        connection.execute("RESET ROLE")
        assert others(connection) == 0
        raise psycopg.Rollback


DAMAGE = [
    "DROP TRIGGER loaded ON outbox",
    "ALTER TABLE outbox DISABLE TRIGGER ALL",
    "ALTER TABLE outbox DISABLE TRIGGER ALL; ALTER TABLE outbox ENABLE TRIGGER ALL",  # pg_restore --disable-triggers
    "DROP FUNCTION outbox_loaded() CASCADE",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_guard_that_is_missing_or_off_is_found_by_check_and_mended_by_init(
    outbox: Outbox, connection: psycopg.Connection[Any], damage: str
) -> None:
    config = HarvestConfig.validated(outbox.settings, source="test")

    def says() -> list[str]:
        return [finding.text for finding in examine(config) if "trigger" in finding.text]

    assert says() == []
    connection.execute(damage.encode())
    [text] = says()
    assert "Run `airflow-outbox init`" in text
    assert len(init_outbox(connection, NAME)) == 1
    assert says() == []
    load(connection, 3)
    assert others(connection) == 0


@pytest.mark.parametrize("transaction_id", [3, 2**40], ids=["past", "future"])
def test_what_was_loaded_while_the_guard_was_off_is_published_once_after_init(
    outbox: Outbox, leading: Process, connection: psycopg.Connection[Any], transaction_id: int
) -> None:
    wait_until(lambda: outbox.query("SELECT watermark IS NOT NULL FROM outbox_published") == [(True,)])
    connection.execute("ALTER TABLE outbox DISABLE TRIGGER ALL")
    connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, transaction_id)"
        " SELECT %s, 'k' || n %% 10, n::text, %s::text::xid8 FROM generate_series(10, 39) AS n",
        [outbox.topic, transaction_id],
    )
    init_outbox(connection, NAME)
    assert not OutboxTable(connection, NAME).is_empty()
    wait_until(lambda: outbox.left() == 0, doing="waiting for what was loaded")
    outbox.stash(10, start=40)
    wait_until(lambda: outbox.left() == 0)
    assert sorted(number for _, number in outbox.published()) == list(range(50))


def test_an_outbox_of_an_earlier_release_gets_the_guard_when_it_is_migrated(
    connection: psycopg.Connection[Any],
) -> None:
    init_outbox(connection, NAME)
    connection.execute(AS_OF_VERSION_4.encode())
    connection.execute("DROP FUNCTION outbox_loaded() CASCADE")
    assert init_outbox(connection, NAME) == [f"migrated {NAME} from schema version 4 to {SCHEMA_VERSION}"]
    assert is_guarded(connection, NAME)


def test_a_table_of_goharvests_gets_the_guard_with_the_column(connection: psycopg.Connection[Any]) -> None:
    connection.execute(GOHARVEST_TABLE.format("outbox"))
    init_outbox(connection, NAME)
    assert not is_guarded(connection, NAME)
    init_outbox(connection, NAME, transaction_id=True)
    assert is_guarded(connection, NAME)
    connection.execute(
        sql.SQL(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
            " transaction_id) VALUES (now(), 't', 'k', '{{}}', '{{}}', '3')"
        ).format()
    )
    assert others(connection) == 0


def test_the_guard_belongs_to_the_tables_owner(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME)
    with connection.transaction():
        connection.execute('CREATE ROLE "the owner"')
        connection.execute('ALTER TABLE outbox OWNER TO "the owner"; DROP FUNCTION outbox_loaded() CASCADE')
        init_outbox(connection, NAME)
        found = connection.execute("SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'outbox_loaded'")
        assert found.fetchall() == [('"the owner"',)]
        raise psycopg.Rollback
