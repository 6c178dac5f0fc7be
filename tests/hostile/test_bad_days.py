"""Bad days of the servers and of the machines around them: clocks that differ, and a pooler between. Nothing is lost or
doubled, an operator is told what is wrong, and harvesting goes on by itself when that has passed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import yaml
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from hostile.innocents import Innocents, names_of
from support.harvesting import CHILD, Outbox, Process, make_topic
from support.pooler import Pooler

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

HOUR = 3600
ANY_TIME = {"message.timestamp.after.max.ms": str(24 * HOUR * 1000)}
"""Lets a topic take records that are ahead of its broker's clock; others take an hour at most."""
KEYS = 8


def set_topic(outbox: Outbox, topic: str, settings: dict[str, str], *, remove: bool = False) -> None:
    admin = AdminClient({"bootstrap.servers": outbox.bootstrap})
    operation = AlterConfigOpType.DELETE if remove else AlterConfigOpType.SET
    entries = [ConfigEntry(name, value, incremental_operation=operation) for name, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def allow(outbox: Outbox, topics: list[str], settings: dict[str, str]) -> None:
    for topic in topics:
        set_topic(outbox, topic, settings)


class SickTopic:
    """A topic beside that of the innocents."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = replace(outbox, topic=outbox.topic + "-sick")
        self.written = 0
        make_topic({"bootstrap.servers": outbox.bootstrap}, self.outbox.topic)

    def write(self, records: int = 40) -> None:
        numbers = range(self.written, self.written + records)
        self.written += records
        with psycopg.connect(self.outbox.database) as connection:
            stash(connection, [OutboxRecord(self.outbox.topic, f"h{n % KEYS}", str(n)) for n in numbers])

    def require_whole(self) -> None:
        """All that was written is in the topic, in order; once, unless it is harvested at least once."""
        lanes = self.outbox.by_key()
        if self.outbox.settings.get("delivery") == "at_least_once":
            lanes = {key: list(dict.fromkeys(numbers)) for key, numbers in lanes.items()}
        assert lanes == {f"h{key}": list(range(key, self.written, KEYS)) for key in range(KEYS)}


def set_back_postgres_clock(outbox: Outbox) -> None:
    """Let what is to be tried again look as it does when the clock of Postgres was set back by an hour since."""
    with psycopg.connect(outbox.database) as connection:
        connection.execute("UPDATE outbox_parked SET retry_at = retry_at + interval '1 hour'")


def waits_for_nothing(outbox: Outbox) -> bool:
    return outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)]


class Clock:
    """The clock of a harvester's machine, as it differs from the right time; it may be set while the harvester runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.set(0)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("wrong_clock.py")), str(self.file)]

    def set(self, seconds: float) -> None:
        changed = self.file.with_suffix(".new")
        changed.write_text(str(seconds))
        changed.replace(self.file)


@pytest.mark.long(mode="at least once")
@pytest.mark.parametrize("mode", ["single", "at least once"])
def test_a_topic_whose_brokers_clock_differs_is_set_aside_as_a_whole(innocents: Innocents, tmp_path: Path) -> None:
    outbox, clock = innocents.outbox, Clock(tmp_path / "clock")
    sick, own = SickTopic(outbox), names_of(outbox)
    ledgers = [own.ledger_topic] if "delivery" not in outbox.settings else []
    allow(outbox, [outbox.topic, own.leader_topic, *ledgers], ANY_TIME)
    clock.set(2 * HOUR)
    with innocents.harvested(command=clock.command) as process:
        innocents.around(sick.write)
        innocents.wait_until(lambda: outbox.left() == 0, "its records wait in the outbox")
        innocents.stand(named="clock")
        [(cause, reason)] = outbox.query("SELECT cause, reason FROM outbox_parked WHERE cause IS NOT NULL")
        assert cause == "clock", "one stands for all"
        assert "the clocks of the harvester" in reason
        clock.set(0)
        set_back_postgres_clock(outbox)
        innocents.wait_until(lambda: waits_for_nothing(outbox), "it stays away")
        sick.write()
        innocents.around(lambda: None)
        innocents.wait_until(lambda: outbox.left() == 0, "its records wait in the outbox")
        sick.require_whole()
        # Each retry costs a term, and they come ever later. Records that were tried one by one would cost one each.
        assert len(process.failures) < sick.written // 2, process.failures


@pytest.mark.long(mode="at least once")
@pytest.mark.parametrize("mode", ["single", "at least once"])
def test_a_harvester_whose_clock_is_wrong_lets_another_lead(innocents: Innocents, tmp_path: Path) -> None:
    outbox, clock = innocents.outbox, Clock(tmp_path / "clock")
    with innocents.harvested(command=clock.command) as process:
        clock.set(-HOUR)
        innocents.around(lambda: None)
        clock.set(2 * HOUR)
        innocents.write()

        def says_it() -> bool:
            told = [event["error"] for event in process.events if event["event"] == "error"]
            return any("the clocks of the harvester" in text for text in told)

        innocents.wait_until(says_it, "nobody says that the clock is wrong")
        assert outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)], innocents.story()
        other = Process(CHILD, first_line={"config": outbox.settings})
        try:
            innocents.come_out()
            innocents.around(lambda: None)
            clock.set(0)
            other.popen.terminate()
            other.ends()
        finally:
            other.end()
        innocents.around(lambda: None)
        innocents.stand(named=None)


@pytest.mark.parametrize("mode", ["single"])
def test_a_pooler_of_transactions_is_refused_before_anything_is_set(
    innocents: Innocents, postgres: EmbeddedPostgres, server_folder: Path, topic_prefix: str
) -> None:
    """Settings of a session would be in force for other clients, too."""
    name = psycopg.conninfo.conninfo_to_dict(innocents.outbox.database)["dbname"]
    with Pooler(server_folder / f"{topic_prefix}pooler", postgres.dsn()) as pooler:
        pooled = {**innocents.outbox.settings, "data_source": pooler.url(str(name))}
        process = Process(CHILD, first_line={"config": pooled})
        try:
            assert "Give the outbox a direct connection" in process.wait_for("error")["error"]
            process.ends()
        finally:
            process.end()
        innocents.file.write_text(yaml.safe_dump(pooled))
        assert "Give the outbox a direct connection" in innocents.command("check", wants=None)
        with psycopg.connect(pooler.url(str(name)), autocommit=True, prepare_threshold=None) as application:
            assert application.execute("SHOW search_path").fetchone() == ('"$user", public',)
    with innocents.harvested():
        innocents.around(lambda: None)
