"""Histories that begin with a backlog, which is one window: transactions of all lengths that write at the same time.
Some have early and late ids, some are longer than what fits into memory, and some lock none of the keys they write.
"""

from __future__ import annotations

from collections import defaultdict

from simulation.checker import UNLOCKED
from simulation.histories import History
from simulation.postgres import Transaction

from airflow_outbox.values.records import MarkedRecord

_KEYS = 8
_TOPICS = 2


class Spanning(History):
    """Nobody harvests until all of the backlog has committed."""

    async def run(self) -> list[str]:
        self._write_backlog()
        return await super().run()

    def has_ended(self) -> bool:
        waiting = [row for row in self.world.database.state.parked.values() if not row.discarded]
        return not waiting and super().has_ended()

    def _write_backlog(self) -> None:
        random, database = self.world.random, self.world.database
        slots: defaultdict[float, list[int]] = defaultdict(list)  # when each transaction writes
        for number in range(random.randrange(10, 60)):
            begins, lasts = random.random(), random.choice((0.0, 0.0, 0.0, 0.01, 0.1))
            for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
                slots[begins + lasts * random.random()].append(number)
        for number in range(100, 100 + random.randrange(4)):
            for _ in range(random.choice((2, 2, 3, 5, 20))):
                slots[random.random()].append(number)
        transactions: defaultdict[int, Transaction] = defaultdict(database.begin)
        for at in sorted(slots):
            for number in slots[at]:
                key = f"{UNLOCKED}{random.randrange(_KEYS)}" if random.random() < 0.3 else f"own {number}"
                transaction = transactions[number]
                topic = f"t{random.randrange(_TOPICS)}"
                identity = transaction.draw()
                transaction.insert(MarkedRecord(identity, topic, key, f"b{identity}", [], [], None))
        for transaction in transactions.values():
            transaction.commit(synchronous=False)
        database.flush()
