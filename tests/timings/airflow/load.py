"""A steady load into an outbox, a reader of what arrives, and a witness of every effect.

The witness is a Postgres trigger on the outbox and on its fence:
in the order of their locks, every change of the view, and the views under which records were marked and purged.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import groupby
from typing import Self
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, TopicPartition
from faults.checker import Lane, Sighting, judge
from support.harvesting import PARTITIONS, PATIENCE, Outbox, wait_until

from airflow_outbox import OutboxRecord, stash

KEYS = 10
TRANSACTION = 10
INTERVAL = 0.05
SURGE = 20_000

_WITNESS = """
CREATE TABLE {outbox}_effects (place BIGSERIAL PRIMARY KEY, effect TEXT NOT NULL, view UUID NOT NULL, member TEXT);
CREATE FUNCTION {outbox}_seen() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO public.{outbox}_effects (effect, view)
    SELECT DISTINCT TG_ARGV[0], leader_id FROM seen WHERE leader_id IS NOT NULL;
    RETURN NULL;
END $$;
CREATE FUNCTION {outbox}_taken_over() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO public.{outbox}_effects (effect, view, member) VALUES ('take over', NEW.view, NEW.member);
    RETURN NULL;
END $$;
CREATE TRIGGER marks AFTER UPDATE ON {outbox} REFERENCING NEW TABLE AS seen
    FOR EACH STATEMENT EXECUTE FUNCTION {outbox}_seen('mark');
CREATE TRIGGER purges AFTER DELETE ON {outbox} REFERENCING OLD TABLE AS seen
    FOR EACH STATEMENT EXECUTE FUNCTION {outbox}_seen('purge');
CREATE TRIGGER views AFTER UPDATE ON {outbox}_shard
    FOR EACH ROW WHEN (OLD.view IS DISTINCT FROM NEW.view) EXECUTE FUNCTION {outbox}_taken_over();
"""


def effects_of_others(effects: list[tuple[str, UUID]]) -> list[str]:
    """The marks and purges under a view that was not the newest; and views that were taken up twice."""
    wrong, views, before = [], [], None
    for effect, view in effects:
        if effect == "take over":
            if view in views:
                wrong.append(f"view {view} came back")
            views.append(view)
        elif view != (views[-1] if views else None):
            wrong.append(f"{effect} under {view} after {before} and the take-over by {views[-1:]}")
        before = effect, view
    return wrong


class SteadyLoad:
    """Stashes 200 records a second into an outbox from entry to exit, and reads what arrives.

    The records are the numbers 0, 1, 2, …; number n has key n mod KEYS.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.stashed = 0
        """All smaller numbers are committed."""
        self.arrived = 0
        """All smaller numbers have arrived."""
        self._surge = threading.Event()
        self._seen: set[int] = set()
        self._sightings: list[Sighting] = []
        self._failures: list[BaseException] = []
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._stash, self._consume)]

    def __enter__(self) -> Self:
        self.outbox.query(_WITNESS.format(outbox=self.outbox.name))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    @property
    def leaders(self) -> list[int]:
        """The processes that have led, one after the other."""
        taken = self.outbox.query(
            f"SELECT member FROM {self.outbox.name}_effects WHERE effect = 'take over' ORDER BY place"
        )
        return [pid for pid, _ in groupby(int(member.rpartition(":")[2]) for (member,) in taken)]

    def surge(self) -> int:
        """Stash so much in the next transaction that harvesting it takes some seconds; what `stashed` will be then."""
        self._surge.set()
        return self.stashed + SURGE

    @property
    def in_flight(self) -> int:
        """How many records are marked."""
        return self.outbox.query(f"SELECT count(leader_id) FROM {self.outbox.name}")[0][0]

    def require_all_well(self, *, within: float = PATIENCE) -> None:
        """Wait until all that is stashed so far has arrived; it must be in order, and by one leader at a time."""
        count = self.stashed
        what = f"the arrival of {count} records of {self.outbox.name}"
        wait_until(lambda: self.arrived >= self._unless_failed(count), within=within, doing=what)
        lanes = {self._lane(number): list(range(number, count, KEYS)) for number in range(KEYS)}
        verdict = judge(lanes, [sighting for sighting in list(self._sightings) if sighting.record < count])
        assert verdict.complaints == (), verdict
        wrong = effects_of_others(self._effects())
        assert wrong == [], wrong

    def wait(self, count: int) -> None:
        """Wait until so many records have been stashed."""
        wait_until(lambda: self.stashed >= self._unless_failed(count), doing=f"a load of {count} records")

    def _unless_failed(self, count: int) -> int:
        assert not self._failures, self._failures
        return count

    def _lane(self, number: int) -> Lane:
        return self.outbox.topic, f"k{number % KEYS}"

    def _effects(self) -> list[tuple[str, UUID]]:
        rows = self.outbox.query(f"SELECT effect, view FROM {self.outbox.name}_effects ORDER BY place")
        return [(effect, view) for effect, view in rows]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)

    def _stash(self) -> None:
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            while not self._ending.wait(INTERVAL):
                if self._surge.is_set():
                    self._surge.clear()
                    connection.execute(
                        f"INSERT INTO {self.outbox.name} (kafka_topic, kafka_key, kafka_value) "
                        f"SELECT '{self.outbox.topic}', format('k%s', number % {KEYS}), number::text "
                        f"FROM generate_series({self.stashed}, {self.stashed + SURGE - 1}) AS made (number) "
                        "ORDER BY made.number".encode()
                    )
                    self.stashed += SURGE
                numbers = range(self.stashed, self.stashed + TRANSACTION)
                records = [OutboxRecord(*self._lane(number), str(number)) for number in numbers]
                with connection.transaction():
                    stash(connection, records, outbox=self.outbox.name)
                self.stashed = numbers.stop

    def _consume(self) -> None:
        settings = {"bootstrap.servers": self.outbox.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        with contextlib.closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(self.outbox.topic, number, 0) for number in range(PARTITIONS)])
            while not self._ending.is_set():
                for message in consumer.consume(1000, 0.1):
                    if (error := message.error()) is not None:
                        raise RuntimeError(error.str())
                    number, lane = int(message.value()), (message.topic(), message.key().decode())
                    self._sightings.append(Sighting(lane, number, message.partition()))
                    self._seen.add(number)
                    while self.arrived in self._seen:
                        self.arrived += 1
