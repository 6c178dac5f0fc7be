"""Asks for tickets in the middle of a load: what is told to be published must be readable at that moment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.load import IMPATIENT
from faults.scene import Scene
from support.harvesting import PARTITIONS, PATIENCE

from airflow_outbox import published

_PAUSE = 0.005


class Asker:
    """Asks for one ticket of a load after the other, each until it is published, while the context lasts.

    At each yes it notes how far consumers that read committed can get.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._admin = AdminClient({"bootstrap.servers": scene.outbox.bootstrap, **IMPATIENT})
        self._partitions = [TopicPartition(scene.outbox.topic, number) for number in range(PARTITIONS)]
        self._told: list[tuple[range, Mapping[int, int]]] = []
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def has_heard(self, least: int) -> bool:
        """Whether at least so many tickets were called published."""
        return len(self._told) >= least or self._failure is not None

    def told_the_truth(self) -> None:
        """The records of each ticket that was called published could be read then."""
        if self._failure is not None:
            raise self._failure
        places = {
            int(message.value() or b"-1"): (message.partition() or 0, message.offset() or 0)
            for message in self._scene.outbox.committed()
        }
        for numbers, stable in self._told:
            ahead = [number for number in numbers if places[number][1] >= stable[places[number][0]]]
            assert not ahead, f"{numbers} was told to be published: {ahead} could not be read\n{self._scene.story()}"

    def _run(self) -> None:
        tickets, place = self._scene.load.tickets, 0
        try:
            with psycopg.connect(self._scene.outbox.database, autocommit=True) as connection:
                while not self._closing.is_set():
                    if place < len(tickets) and published(connection, tickets[place][0]):
                        self._told.append((tickets[place][1], self._stable_offsets()))
                        place += 1
                    else:
                        self._closing.wait(_PAUSE)
        except Exception as error:
            self._failure = error

    def _stable_offsets(self) -> dict[int, int]:
        asked = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=PATIENCE,
        )
        return {where.partition: int(found.result().offset) for where, found in asked.items()}
