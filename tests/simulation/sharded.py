"""Histories of an outbox with several shards, whose number changes or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from simulation.ambush import RESHARDING, Moment, Strike
from simulation.histories import History
from simulation.kafka import ledger_of
from simulation.poisoned import Poisoned
from simulation.world import Design, World

from airflow_outbox.values.layout import Layout

_NUMBERS = (1, 2, 3, 5)
_SHARE_OF_AMBUSHES = 0.3
"""How many writes of a layout are held up: meanwhile the request may be withdrawn, and another member lead a shard."""
SHARDS = {"sharded": 3, "attached_shards": 2, "resharded": 1, "resharded_poisoned": 2, "detached_shards": 1}
"""How many shards there are at first, by the kind of histories."""


class ManyShards(History):
    """Several shards, from the beginning on."""

    def __init__(self, world: World, design: Design, *, focused: bool, transactions: int = 45) -> None:
        super().__init__(world, design, focused=focused, transactions=transactions)
        if design.shards is not None and design.shards > 1:
            world.database.statement("ask_layout", Layout(1, 1, design.shards))
            world.server.write_layout({0: None}, design.shards)  # type: ignore[dict-item]  # nobody has led it

    async def _disturb(self) -> None:
        asking = asyncio.create_task(self._ask_for_handovers())
        await super()._disturb()
        asking.cancel()

    async def _ask_for_handovers(self) -> None:
        random, database = self.world.random, self.world.database
        while True:
            await asyncio.sleep(10 * random.random())
            shard = random.choice(sorted(database.state.present))
            row = database.state.fences[shard]
            if database.up and row.slots is not None:
                database.statement("set_fence", replace(row, hands_over=True), shard)

    def _rebalance(self) -> None:
        self.world.random.choice(self.world.groups(self.world.database.state.layout)).rebalance()

    def _compact(self) -> None:
        shard = self.world.random.choice(sorted(self.world.database.state.fences))
        ledger = self.world.broker.partition(ledger_of(shard))
        oldest = min((record.at for record in ledger.records), default=0)
        newest = max((record.at for record in ledger.records), default=0)
        limit = self.world.random.randrange(ledger.end + 1)
        ledger.compact(limit, forget_tombstones_before=(oldest + newest) // 2)


class Resharded(ManyShards):
    """At any time somebody asks for another number of shards, or withdraws that."""

    async def _disturb(self) -> None:
        asking = asyncio.create_task(self._ask_now_and_then())
        await super()._disturb()
        asking.cancel()

    async def _ask_now_and_then(self) -> None:
        random, database = self.world.random, self.world.database
        while True:
            await asyncio.sleep(6 * random.random())
            layout = database.state.layout
            if database.up:
                wanted = random.choice(_NUMBERS) if layout.wanted is None or random.random() < 0.7 else None
                self.world.server.ask_layout(wanted)

    def _moments(self, strike: Strike) -> Sequence[Moment]:
        return RESHARDING if self.world.random.random() < _SHARE_OF_AMBUSHES else super()._moments(strike)

    def has_ended(self) -> bool:
        return self.world.database.state.layout.wanted is None and super().has_ended()


class ReshardedPoisoned(Resharded, Poisoned):
    """And there are records that Kafka does not take."""
