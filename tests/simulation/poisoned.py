"""Histories with records that Kafka does not take: topics that are not there, records that are refused when sent.

At the end the reasons are gone, and everything has to come out, in order: by itself, but for what Kafka refused for a
reason that does not pass, of which operators ask to retry each record once it has its reason.
"""

from __future__ import annotations

import asyncio

from simulation.histories import History
from simulation.postgres import ParkedRow

from airflow_outbox.harvest.protocol.parking import Cause, Refusal

TOPICS = ("t0", "t1")


class Poisoned(History):
    """Some values are poison, and topics come and go."""

    async def _disturb(self) -> None:
        random, broker = self.world.random, self.world.broker
        for place in range(random.randrange(5)):
            value = f"v{random.randrange(1, 80)}"
            if place % 2:
                broker.untold.add(value)
            else:
                broker.told[value] = Refusal(random.choice((Cause.TOO_LARGE, Cause.PARTITION)), "simulated")
        poisoning = asyncio.create_task(self._poison())
        await super()._disturb()
        poisoning.cancel()
        broker.missing.clear()
        broker.told.clear()
        broker.untold.clear()

    async def _poison(self) -> None:
        random, broker = self.world.random, self.world.broker
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

    def has_ended(self) -> bool:
        if not self._waiting:
            return super().has_ended()
        stays = [number for number, row in self._waiting if row.refusal is not None and not row.refusal.cause.can_pass]
        self._ask([number for number in stays if self.world.database.state.parked[number].requested is None], "retry")
        return False
