"""Replays from the archive: counted first, carried out once, to be gone on with after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from support.harvesting import COMMAND, Outbox, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.operate.replay import Replay, Replayer
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.stash import stash

NAME = OutboxName.parse("outbox")
MONTH = 30 * 86400.0
COUNT = 300
HOLD = """
CREATE TABLE held AS SELECT NULL::integer AS above;
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql SET search_path = public SET lock_timeout = 0 AS $$
BEGIN
    IF (SELECT sum(records) FROM outbox_commits WHERE app_id LIKE 'replay/%') > (SELECT above FROM held) THEN
        PERFORM pg_advisory_xact_lock(7);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER hold AFTER INSERT ON outbox_commits FOR EACH ROW EXECUTE FUNCTION hold();
"""
"""Holds up the transaction in which a replay gets above so many records."""
HELD = """
SELECT granted FROM pg_locks
WHERE locktype = 'advisory' AND objid = 7
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY granted LIMIT 1
"""
"""Whether nobody waits for that; no row when nobody is there."""


@pytest.fixture
def filled_archive(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """An archive of records 0 to 299 of two topics and ten keys, as if they had been published."""
    init_outbox(connection, NAME, archive_retention=MONTH)
    fill(connection, COUNT)
    return connection


def fill(connection: psycopg.Connection[Any], count: int) -> None:
    stash(
        connection,
        [OutboxRecord(f"t{n % 2}", f"k{n % 10}", str(n), {"n": str(n)}, partition=n % 3) for n in range(count)],
    )
    move(connection)


def move(connection: psycopg.Connection[Any]) -> None:
    columns = "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
    columns += ", kafka_partition, transaction_id"
    connection.execute(
        f"WITH gone AS (DELETE FROM outbox RETURNING *) INSERT INTO outbox_archive ({columns}, archived_at, view)"
        f" SELECT {columns}, now(), gen_random_uuid() FROM gone".encode()
    )


def waiting(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
        " FROM outbox ORDER BY id"
    ).fetchall()


def run(connection: psycopg.Connection[Any], transaction_records: int = 50, **choices: Any) -> int:
    replay = Replay(**{"replay_id": "r", **choices})
    return Replayer(connection, NAME, replay).run(transaction_records=transaction_records, report=lambda _: None).in_all


def test_a_key_comes_again_in_its_order_with_a_header_that_names_the_replay(
    filled_archive: psycopg.Connection[Any],
) -> None:
    assert run(filled_archive, key="k3") == 30
    assert waiting(filled_archive) == [
        ("t1", "k3", str(n), ["n", "outbox-replay"], [str(n), "r"], n % 3) for n in range(3, COUNT, 10)
    ]
    transactions = filled_archive.execute("SELECT DISTINCT transaction_id::text FROM outbox").fetchall()
    assert len(transactions) == 1
    assert len(filled_archive.execute("SELECT FROM outbox_archive").fetchall()) == COUNT


def test_what_fits_all_choices_is_meant_and_counted_first(filled_archive: psycopg.Connection[Any]) -> None:
    def count(**choices: Any) -> dict[str, int]:
        return Replayer(filled_archive, NAME, Replay(replay_id="r", **choices)).count()

    now = datetime.now(UTC)
    assert count(everything=True) == {"t0": 150, "t1": 150}
    assert count(topic="t1") == {"t1": 150}
    assert count(topic="t0", key="k1") == {}
    assert count(from_id=11, to_id=20) == {"t0": 5, "t1": 5}
    assert count(since=now - timedelta(hours=1), until=now + timedelta(hours=1), to_id=3) == {"t0": 2, "t1": 1}
    assert count(since=now + timedelta(hours=1)) == {}
    assert count(until=now - timedelta(hours=1)) == {}
    assert waiting(filled_archive) == []


def test_into_another_topic_partitions_are_left_to_the_keys(filled_archive: psycopg.Connection[Any]) -> None:
    assert run(filled_archive, topic="t1", to_topic="elsewhere", header="again") == 150
    rows = waiting(filled_archive)
    assert {(row[0], row[5], row[3][-1], row[4][-1]) for row in rows} == {("elsewhere", None, "again", "r")}
    assert [int(row[2]) for row in rows] == list(range(1, COUNT, 2))


class Interruption(Exception):
    pass


def test_an_interrupted_replay_goes_on_and_a_finished_one_does_nothing(filled_archive: psycopg.Connection[Any]) -> None:
    def interrupt(stashed: int) -> None:
        if stashed >= 100:
            raise Interruption

    with pytest.raises(Interruption):
        Replayer(filled_archive, NAME, Replay(replay_id="r", everything=True)).run(
            transaction_records=50, report=interrupt
        )
    assert len(waiting(filled_archive)) == 100
    move(filled_archive)  # what it has stashed is published and archived meanwhile
    fill(filled_archive, 10)  # and others come
    assert run(filled_archive, everything=True, transaction_records=70) == COUNT
    assert [int(row[2]) for row in waiting(filled_archive)] == list(range(100, COUNT))
    assert run(filled_archive, everything=True) == COUNT
    assert len(waiting(filled_archive)) == COUNT - 100
    assert run(filled_archive, replay_id="another", everything=True) == COUNT + 10  # and no record of the first replay


def test_the_trail_says_once_that_it_began(filled_archive: psycopg.Connection[Any]) -> None:
    for _ in range(2):  # the second time there is nothing left to do
        replayer = Replayer(filled_archive, NAME, Replay(replay_id="r", topic="t1", to_topic="u"), on_behalf_of="ada")
        replayer.count()
        replayer.run(transaction_records=100, report=lambda _: None)
    [entry] = read_trail(filled_archive, NAME)
    assert (entry.action, entry.on_behalf_of, entry.records) == ("replay", "ada", 150)
    assert entry.matched == "topic t1; into u; as r"


def test_an_id_stands_for_the_choices_it_was_begun_with(filled_archive: psycopg.Connection[Any]) -> None:
    run(filled_archive, key="k3")
    for other in ({"key": "k4"}, {"key": "k3", "to_topic": "t"}, {"everything": True}):
        with pytest.raises(ConfigurationError, match="other options"):
            run(filled_archive, **other)
    run(filled_archive, replay_id="r2", key="k4")
    assert len(waiting(filled_archive)) == 60


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({}, "select the records"),
        ({"everything": True, "key": "k"}, "select the records"),
        ({"everything": True, "replay_id": "a b"}, "not an id"),
        ({"everything": True, "replay_id": "a/b"}, "not an id"),
        ({"everything": True, "to_topic": "no topic"}, "not a legal name"),
        ({"everything": True, "header": ""}, "needs a name"),
    ],
)
def test_choices_that_can_not_be_meant_are_refused(choices: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Replay(**{"replay_id": "r", **choices})


def test_bytes_are_replayed_as_they_were(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME, key_type="bytea", value_type="bytea", header_type="bytea", archive_retention=MONTH)
    stash(connection, [OutboxRecord("t", b"\xff\x00", b"\x00\x01", {"h": b"\xfe"}), OutboxRecord("t", b"other", b"")])
    move(connection)
    assert run(connection, key="\\xff00") == 1
    assert waiting(connection) == [("t", b"\xff\x00", b"\x00\x01", ["h", "outbox-replay"], [b"\xfe", b"r"], None)]


def test_who_operates_may_replay(filled_archive: psycopg.Connection[Any], database: str) -> None:
    role = "operate_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"][-12:]
    filled_archive.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
    try:
        for statement in grant_statements(filled_archive, NAME, "operate", role):
            filled_archive.execute(statement.encode())
        with psycopg.connect(database, user=role, password="secret", autocommit=True) as operator:
            assert run(operator, key="k3") == 30
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute("DELETE FROM outbox_archive")
    finally:
        filled_archive.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    made = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", purge="archive")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME, archive_retention=MONTH)
    return made


@pytest.fixture
def file(outbox: Outbox, tmp_path: Path) -> Path:
    path = tmp_path / "outbox.yaml"
    path.write_text(yaml.safe_dump(outbox.settings))
    return path


@pytest.mark.usefixtures("harvester")
def test_the_command_counts_asks_and_publishes_once_more(outbox: Outbox, file: Path) -> None:
    other = outbox.topic + "-again"
    make_topic({"bootstrap.servers": outbox.bootstrap}, other)
    outbox.stash(COUNT)
    wait_until(lambda: outbox.left() == 0, doing="harvesting")

    def replay(*options: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(main, ["replay", "-f", str(file), *options], input=answer)

    dry = replay("--key", "k3", "--dry-run")
    assert dry.output == f"30 records of {outbox.topic}\n"
    assert replay("--key", "nobody's").output == "no records in the archive match\n"
    assert "Replay them" in replay("--key", "k3", answer="n\n").output
    assert outbox.left() == 0
    assert replay("--since", "last week", "--yes").exit_code == 2
    assert replay("--all", "--transaction", "0", "--yes").exit_code == 2
    done = replay("--key", "k3", "--to", other, "--id", "incident-7", answer="y\n")
    assert "30 records are stashed again, with the header outbox-replay: incident-7" in done.output
    wait_until(lambda: outbox.left() == 0, doing="publishing once more")
    messages = Outbox(outbox.database, outbox.bootstrap, other).committed()
    assert [message.value().decode() for message in messages] == [str(n) for n in range(3, COUNT, 10)]
    assert {dict(message.headers() or [])["outbox-replay"] for message in messages} == {b"incident-7"}
    wait_until(lambda: outbox.query("SELECT count(*) FROM outbox_archive")[0][0] == COUNT + 30)
    assert replay("--key", "k3", "--to", other, "--id", "incident-7", "--yes").exit_code == 0
    assert outbox.left() == 0


@pytest.mark.usefixtures("harvester")
def test_a_replay_that_is_killed_again_and_again_publishes_each_record_once(outbox: Outbox, file: Path) -> None:
    count = 20_000
    outbox.stash(count)
    wait_until(lambda: outbox.left() == 0, doing="harvesting")
    command = [*COMMAND, "replay", "-f", str(file), "--all", "--id", "again", "--transaction", "20", "--yes"]

    def stashed() -> int:
        found = outbox.query("SELECT coalesce(sum(records), 0)::int FROM outbox_commits WHERE app_id LIKE 'replay/%'")
        return int(found[0][0])

    with psycopg.connect(outbox.database, autocommit=True) as holder:
        holder.execute(HOLD)
        for target in (2_000, 6_000, 11_000):
            holder.execute("UPDATE held SET above = %s", [target])
            holder.execute("SELECT pg_advisory_lock(7)")
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                wait_until(lambda: outbox.query(HELD) == [(False,)], doing="the replay")
                os.kill(process.pid, signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
            assert target - 20 <= stashed() < target + 20
            holder.execute("SELECT pg_advisory_unlock(7)")
            wait_until(lambda: outbox.query(HELD) == [], doing="the end of the killed one's transaction")
        holder.execute("UPDATE held SET above = NULL")
    assert stashed() < count
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: outbox.left() == 0, doing="publishing once more")
    again = [int(m.value()) for m in outbox.committed() if "outbox-replay" in dict(m.headers() or [])]
    assert sorted(again) == list(range(count))
