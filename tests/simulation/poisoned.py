"""Histories with records that Kafka does not take: topics that are not there, records that are refused when sent.

Operators ask to retry; at the end the reasons are gone, and everything has to come out, in order.
"""

from __future__ import annotations

import asyncio

from simulation.histories import History

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
                self._ask(random.choice(("retry", "retry", "discard")))

    def _ask(self, request: str) -> None:
        database = self.world.database
        waiting = [number for number, row in database.state.parked.items() if not row.discarded]
        if database.up and waiting:
            database.statement("ask", (self.world.random.choice(waiting),), request)

    def has_ended(self) -> bool:
        if any(not row.discarded for row in self.world.database.state.parked.values()):
            self._ask("retry")
            return False
        return super().has_ended()
