"""Harvesters on bad days, each for an outbox of its own: what they say, and that they go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from secure.bad_days import (
    MAY_BE_DONE,
    RECORDS,
    BadDay,
    no_room_to_mark,
    no_room_to_park,
)
from secure.conftest import MakeOutbox, SecureOutbox, Start
from secure.disks import MEGABYTE, Disk, fill, small_file_system
from support.harvesting import Outbox, Process, wait_until
from support.harvesting import make_outbox as make_plain_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.process import ServerError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.schema import grant_statements


def as_a_role(outbox: SecureOutbox) -> None:
    """Let the harvester be a role of its own in Postgres, with what `grant` gives."""
    outbox.settings |= {
        "data_source": make_conninfo(outbox.database, user=outbox.user, password="pw"),
        "outbox_table": "public.outbox",
    }
    name = HarvestConfig.validated(outbox.settings, source="test").name
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(sql.Identifier(outbox.user)))
        for line in grant_statements(connection, name, "harvest", outbox.user):
            connection.execute(line.encode())


def runs(kafka: EmbeddedKafka) -> bool:
    try:
        return kafka.pid > 0
    except ServerError:
        return False


def said(process: Process) -> list[str]:
    """Its complaints: errors, and the causes of parked records."""
    errors = [event["error"] for event in process.events if event["event"] == "error"]
    parked = [why["reason"] for event in process.events if event["event"] == "parked" for why in event["reasons"]]
    return errors + parked


def waiting(outbox: Outbox) -> list[int]:
    """How many records are in the outbox, and how many are parked."""
    return [outbox.left(), int(outbox.query("SELECT count(*) FROM outbox_parked")[0][0])]


def outlives_what_is_mended(
    days: Mapping[str, BadDay],
    make_outbox: MakeOutbox,
    start: Start,
    disks: list[Disk],
    meanwhile: Callable[[dict[str, Process]], None] = lambda _: None,
) -> None:
    """Harvesters say what is wrong, and go on when all is mended; before that, `meanwhile` is called with them."""
    to_mark, to_park = disks
    days = {**days, "no room to mark": no_room_to_mark(to_mark), "no room to park": no_room_to_park(to_park)}
    outboxes = {name: make_outbox() for name in days}
    for name, outbox in outboxes.items():
        outbox.settings["delivery"] = days[name].delivery
        as_a_role(outbox)
    processes = {name: start(outbox) for name, outbox in outboxes.items()}
    for process in processes.values():
        process.wait_for("progress", standing="leading")
    for name, day in days.items():
        day.damage(outboxes[name])

    def silent() -> list[str]:
        return [
            name for name, day in days.items() if not any(re.search(day.says, text) for text in said(processes[name]))
        ]

    wait_until(lambda: not silent(), doing=lambda: str({name: processes[name].events[-5:] for name in silent()}))
    meanwhile(processes)
    assert {name for name in days if processes[name].popen.poll() is not None} == set()
    assert {name for name in days.keys() - MAY_BE_DONE if waiting(outboxes[name]) == [0, 0]} == set()
    for name, day in days.items():
        day.mend(outboxes[name])
        outboxes[name].stash(RECORDS, start=RECORDS)

    def unmended() -> dict[str, list[int]]:
        left = {name: waiting(outbox) for name, outbox in outboxes.items()}
        return {name: counts for name, counts in left.items() if counts != [0, days[name].parked]}

    wait_until(
        lambda: not unmended(),
        doing=lambda: str({name: [counts, *processes[name].events[-5:]] for name, counts in unmended().items()}),
    )


def outlives_a_broker_whose_disk_is_full(
    database: str,
    folder: Path,
    classpath: str,
    start: Start,
    meanwhile: Callable[[dict[str, Process]], None] = lambda _: None,
) -> None:
    """Its only log folder fails, and it ends itself. With room again it is started again, and all goes on."""
    folder = folder / "full"
    with (
        small_file_system(folder, 64 * MEGABYTE) as disk,
        EmbeddedKafka(folder / "kafka", classpath=classpath) as kafka,
    ):
        outbox = make_plain_outbox(database, bootstrap=kafka.bootstrap, topic="data")
        process = start(outbox)
        process.wait_for("progress", standing="leading")
        if disk is None:
            kafka.kill()
        else:
            fill(folder / "ballast")
        outbox.stash(RECORDS)
        says = "can't reach Kafka at .*Check bootstrap.servers"
        if disk is not None:
            wait_until(lambda: not runs(kafka), doing="waiting for the broker to give up")
        wait_until(lambda: any(re.search(says, error) for error in said(process)), doing=str(process.events))
        meanwhile({"": process})
        if disk is not None:
            (folder / "ballast").unlink()
        kafka.restart()
        wait_until(lambda: outbox.left() == 0, doing=str(said(process)))
        assert outbox.by_key().keys() == {f"k{n}" for n in range(10)}
