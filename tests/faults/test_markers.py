"""The broker's own requests, by which the end of a transaction reaches the partitions: WriteTxnMarkers.

Until a partition has its marker, nobody who reads committed sees what the transaction wrote there. So nothing may be
called published before.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from faults.frames import Api, Request, of
from faults.late import LateScene
from faults.load import TopicReader
from faults.treatments import Cut, Delay, Hold, Late, Treatment, Twice
from support.harvesting import CALM, PATIENCE

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.tickets.published import published
from airflow_outbox.values.records import Snapshot

HELD_BACK = 5.0
"""Seconds in which nobody may say so."""
SLOW_TO_REPEAT = {"retry.backoff.ms": 300_000, "retry.backoff.max.ms": 300_000}
"""So that no commit of a busy machine is so slow that it could have been asked for twice."""
CASES: dict[str, Treatment] = {
    "doubled": Twice(),
    "unheard": Cut(answered=True),
    "lost": Cut(answered=False),
    "delayed": Delay(3),
}


@dataclass(slots=True)
class Tellers:
    """All who say that something is published: the watermark, the function for tickets, the announcements."""

    outbox_id: str
    asking: psycopg.Connection
    listening: psycopg.Connection
    _announced: list[Snapshot] = field(default_factory=list)

    def who_says_so(self, ticket: Ticket) -> set[str]:
        for notice in self.listening.notifies(timeout=0):
            snapshot = notice.payload.split()[2]  # behind shard and incarnation, before the proof
            if ":" in snapshot:
                self._announced.append(Snapshot.parse(snapshot))
        number = ticket.transaction_id
        [(watermark,)] = self.asking.execute("SELECT watermark::text FROM outbox_published").fetchall()
        said = {
            "the watermark": watermark is not None and Snapshot.parse(watermark).sees(number),
            "published()": published(self.asking, ticket),
            "an announcement": any(announced.sees(number) for announced in self._announced),
        }
        return {teller for teller, says_so in said.items() if says_so}


@contextlib.contextmanager
def tellers(scene: LateScene) -> Iterator[Tellers]:
    database = scene.outbox.database
    with (
        psycopg.connect(database, autocommit=True) as asking,
        psycopg.connect(database, autocommit=True) as listening,
    ):
        outbox_id = str(scene.outbox.query("SELECT outbox_id FROM outbox_state")[0][0])
        listening.execute(f'LISTEN "outbox {outbox_id}"')  # type: ignore[call-overload]
        yield Tellers(outbox_id, asking, listening)


@contextlib.contextmanager
def plain_reader(scene: LateScene) -> Iterator[TopicReader]:
    reader = TopicReader(scene.outbox.bootstrap, scene.outbox.topic)
    try:
        yield reader
    finally:
        reader.close()


def write(scene: LateScene, first: int, count: int = 20) -> Ticket:
    with psycopg.connect(scene.outbox.database) as connection:
        records = [OutboxRecord(scene.outbox.topic, f"k{n}", str(n)) for n in range(first, first + count)]
        return stash(connection, records)


@pytest.mark.parametrize("is_followed", [False, True], ids=["idle", "followed"])
def test_published_is_said_when_it_can_be_read(late_scene: LateScene, is_followed: bool) -> None:
    """Markers are held back; `followed` by another batch, whose own commit tells nothing about the first."""
    scene = late_scene
    scene.leader()
    with tellers(scene) as who, plain_reader(scene) as reader:
        first = write(scene, 0)
        scene.wait_until(lambda: len(who.who_says_so(first)) == 3)
        scene.wait_until(lambda: len(reader) == 20)
        held = scene.between.strike(Api.WRITE_MARKERS, Hold())
        tickets = {40: write(scene, 20)}
        scene.wait_until(held.struck.is_set)
        if is_followed:
            tickets[60] = write(scene, 40)
        until = time.monotonic() + HELD_BACK
        while time.monotonic() < until:
            for needed, ticket in tickets.items():
                said = who.who_says_so(ticket)
                assert not said or len(reader) >= needed, (
                    f"{sorted(said)} called it published: {len(reader)} of {needed}"
                )
            time.sleep(0.02)
        assert len(reader) < 40, "a reader came past markers that are held back"
        held.strikes[0].deliver()
        scene.wait_until(lambda: len(reader) == max(tickets))
        scene.wait_until(lambda: all(len(who.who_says_so(ticket)) == 3 for ticket in tickets.values()))


@pytest.mark.parametrize("treatment", CASES.values(), ids=CASES)
def test_markers_amid_the_load(late_scene: LateScene, treatment: Treatment) -> None:
    scene = late_scene
    scene.leader()
    with scene.readers_go_on():
        scene.midway()
        scene.struck(scene.between.strike(Api.WRITE_MARKERS, treatment))
        scene.midway(200)
        scene.ends_well()


def test_a_late_marker_of_the_brokers_own_is_more_than_the_defence_can_meet(late_scene: LateScene) -> None:
    """A limit, stated in the docs: a broker repeats markers by itself, at once, when its own connection breaks. A first
    copy that arrives in the next transaction of the same epoch makes readable what that one has produced so far; its
    leader is then killed. A broker that refuses such a copy fails this test: then the promise may be made.

    One producer has all the turns, so that the next transaction has the same epoch.
    """
    scene = late_scene
    scene.limits = {"batch_records": 200, **CALM, "transactional_ids": 1}
    scene.outbox.settings["kafka_producer"] = SLOW_TO_REPEAT
    leader = scene.leader()
    del scene.outbox.settings["kafka_producer"]
    scene.midway()
    markers = scene.between.strike(Api.WRITE_MARKERS, Late())
    scene.wait_until(markers.struck.is_set)
    produced = -math.inf

    def fourth_of_a_transaction(request: Request) -> Treatment | None:
        nonlocal produced
        produced = 0 if request.api == Api.END else produced + (request.api == Api.PRODUCE)
        return Hold() if produced == 4 and not held.strikes else None

    late = markers.strikes[0]
    scene.wait_until(lambda: any(request.at > late.request.at for request in of(scene.frames.seen, Api.END)))
    held = scene.frames.mistreat(fourth_of_a_transaction)
    scene.wait_until(held.struck.is_set)
    produced_by_it = of(scene.frames.seen, Api.PRODUCE, held.strikes[0].request.transactional_id)
    place = produced_by_it.index(held.strikes[0].request)
    before = produced_by_it[place - 3 : place]
    scene.wait_until(lambda: all(request in scene.frames.taken for request in before))  # they are appended
    late.deliver()
    assert late.answered.wait(PATIENCE)
    leader.popen.kill()
    scene.member()
    scene.midway(200)
    with pytest.raises(AssertionError, match="duplicates"):
        scene.ends_well()
