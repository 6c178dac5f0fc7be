"""Applications that write to the outbox: transactions of all kinds, several at once.

They keep to what the order of a key asks for: whoever writes records of a key holds that key's lock from before the
first id is drawn until the transaction has ended. Some load rows of a dump, with the transaction ids that stand there.

Where there is a listener, somebody waits for each ticket whose commit is acknowledged: from then on, or from before the
commit.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from simulation.postgres import OUTBOX_ID, Database, PreparedTransaction, Transaction, TransactionLostError
from simulation.waiting import Wait, Waiting
from simulation.world import World

from airflow_outbox.values.records import MarkedRecord, Ticket

TOPICS = 2
KEYS = 6
_FLUSH_INTERVAL = 1.5


class Applications:
    """Writes `transactions` by several writers, until all have ended one way or the other."""

    def __init__(
        self,
        world: World,
        waiting: Waiting | None = None,
        *,
        transactions: int,
        writers: int = 4,
        values: str = "v",
    ) -> None:
        """`values` is what the records' values begin with."""
        self._values = values
        self._world = world
        self._random = world.random
        self._waiting = waiting
        self._database: Database = world.database
        self._left = transactions
        self._written = 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._writers = writers

    async def run(self) -> None:
        await asyncio.gather(*(self._write() for _ in range(self._writers)))

    async def go_on(self, transactions: int) -> None:
        """Write some more."""
        self._left += transactions
        await self.run()

    def write_at_once(self, records: int) -> None:
        """One more transaction, of so many records, whose keys no other writes."""
        if self._database.up:
            transaction = self._database.begin()
            for place in range(records):
                transaction.insert(self._record(transaction.draw(), f"b{place % KEYS}"), of_transaction=None)
            transaction.commit()

    async def flush_now_and_then(self) -> None:
        """Postgres' WAL writer, for commits that nobody waits for."""
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL * self._random.random())
            self._database.flush()

    async def _write(self) -> None:
        while self._left > 0:
            self._left -= 1
            await self._pause(1.0)
            keys = sorted(self._random.sample(range(KEYS), self._random.choice((1, 1, 2, 3))))
            async with AsyncExitStack() as locked:
                for key in keys:
                    await locked.enter_async_context(self._locks[f"k{key}"])
                try:
                    await self._transact([f"k{key}" for key in keys])
                except TransactionLostError:
                    await self._pause(0.5)

    async def _transact(self, keys: list[str]) -> None:
        transaction = self._database.begin()
        count = self._random.choice((1, 1, 2, 3, 5))
        early = [transaction.draw() for _ in range(count)] if self._random.random() < 0.25 else []
        if early:
            await self._pause(2.0)
        incarnation = self._database.state.fence.incarnation
        loads = self._random.random() < 0.1
        values = []
        for place in range(count):
            number = early[place] if early else transaction.draw()
            loaded = self._other_transaction() if loads else None
            record = self._record(number, self._random.choice(keys))
            transaction.insert(record, of_transaction=loaded)
            values.append(str(record.value))
            if self._random.random() < 0.3:
                await self._pause(0.3)
        assert transaction.transaction_id is not None
        await self._end(transaction, Ticket(OUTBOX_ID, incarnation, transaction.transaction_id), values)

    async def _end(self, transaction: Transaction, ticket: Ticket, values: list[str]) -> None:
        draw = self._random.random()
        wait: Wait | None = None
        if draw < 0.1 or draw >= 0.92:
            wait = self._wait(ticket, values, has_committed=False)
        if draw < 0.15:
            await self._pause(8.0)
        if draw < 0.45:
            transaction.commit()
            wait = wait or self._wait(ticket, values, has_committed=draw < 0.3)
            if wait is not None:
                wait.is_acknowledged = True
        elif draw < 0.8:
            transaction.commit(synchronous=False)
        elif draw < 0.92:
            transaction.rollback()
        else:
            await self._end_prepared(transaction.prepare(), wait)

    def _wait(self, ticket: Ticket, values: list[str], *, has_committed: bool) -> Wait | None:
        return self._waiting and self._waiting.begin(ticket, values, has_committed=has_committed)

    async def _end_prepared(self, prepared: PreparedTransaction, wait: Wait | None) -> None:
        committed = self._random.random() < 0.7
        await self._pause(5.0)
        while not self._database.up:
            await self._pause(1.0)
        prepared.end(committed=committed)
        if wait is not None:
            wait.is_acknowledged = committed

    def _other_transaction(self) -> int:
        """The transaction id of a row out of a dump: a past one, or one of another database."""
        return self._random.choice((self._random.randint(1, self._database.state.next_transaction_id), 2**40))

    def _record(self, number: int, key: str) -> MarkedRecord:
        """Its value tells it from all others, also from those of a history that a crash undid."""
        self._written += 1
        return MarkedRecord(number, f"t{self._written % TOPICS}", key, f"{self._values}{self._written}", [], [], None)

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(longest * self._random.random())
