"""Histories with records that Kafka does not take: topics that are not there, records that are refused when sent.

In the end there are two stages. First what only the sending tells stays poison, and everything has to come out but for
these records and what has to wait behind them: each is found and parked, however often somebody asks to retry it. Then
all reasons are gone, and all the rest has to come out, in order: by itself, but for what Kafka refused for a reason
that does not pass, of which operators ask to retry each record once it has its reason.
"""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.database_state import ParkedRow
from simulation.histories import History
from simulation.kafka import Broker

from airflow_outbox.values.refusals import Cause, Refusal

TOPICS = ("t0", "t1")


class Poisoned(History):
    """Some values are poison, and topics come and go."""

    _stays_poisoned = False
    _asked_up_to = 0

    @property
    def _poisoned(self) -> Broker:
        """The cluster that does not take them."""
        return self.world.broker

    async def _disturb(self) -> None:
        random, broker = self.world.random, self._poisoned
        for place in range(random.randrange(5)):
            value = f"v{random.randrange(1, 80)}"
            if place % 2:
                broker.untold.add(value)
                if place == 3:
                    broker.unclear.add(value)
            else:
                broker.told[value] = Refusal(random.choice((Cause.TOO_LARGE, Cause.PARTITION)), "simulated")
        poisoning = asyncio.create_task(self._poison())
        await super()._disturb()
        poisoning.cancel()
        broker.missing.clear()
        broker.told.clear()

    async def _poison(self) -> None:
        random, broker = self.world.random, self._poisoned
        while True:
            await asyncio.sleep(4 * random.random())
            topic = random.choice(TOPICS)
            broker.missing ^= {topic}
            if random.random() < 0.5:
                waiting = [number for number, row in self._waiting if row.requested is None]
                self._ask(waiting and [random.choice(waiting)], random.choice(("retry", "retry", "discard")))

    @property
    def _waiting(self) -> list[tuple[int, ParkedRow]]:
        return [(number, row) for number, row in self.world.database.state.parked.items() if not row.discarded]

    def _ask(self, numbers: list[int], request: str) -> None:
        if self.world.database.up and numbers:
            self.world.database.statement("ask", tuple(numbers), request)

    async def drain(self) -> bool:
        self._stays_poisoned = True
        if not await super().drain():
            return False
        self._stays_poisoned = False
        self._poisoned.untold.clear()
        return await super().drain()

    def has_ended(self) -> bool:
        if not super().has_ended():
            return False
        held = self._held_by_poison() if self._stays_poisoned else set()
        if self._waiting and self._waiting[-1][0] > self._asked_up_to:  # once of each, poison or not
            self._ask([number for number, _ in self._waiting if number > self._asked_up_to], "retry")
            self._asked_up_to = self._waiting[-1][0] if self.world.database.up else self._asked_up_to
            return False
        self._ask(
            [
                number
                for number, row in self._waiting
                if number not in held and row.requested is None and row.waits_to_be_asked_for
            ],
            "retry",
        )
        return all(number in held for number, _ in self._waiting)

    def _held_by_poison(self) -> set[int]:
        """The parked records that Kafka does not take, and those that come behind them: in their topic and key, or, in
        an atomic outbox, by way of whole transactions.
        """
        held: set[int] = set()
        lanes: set[Any] = set()
        transactions: set[int] = set()
        while True:
            before = len(held)
            for number, row in self._waiting:
                lane = row.record[1:3]
                if row.record.value in self._poisoned.untold or lane in lanes or row.transaction_id in transactions:
                    held.add(number)
                    lanes.add(lane)
                    if self.design.atomic:
                        transactions.add(row.transaction_id)
            if len(held) == before:
                return held
            lanes = set()
