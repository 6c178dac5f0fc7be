"""`airflow-outbox adopt` in the simulated world: its decisions are the real ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

from simulation.kafka import LEDGER, Concurrent
from simulation.log import PRODUCERS, TRANSACTIONAL_ID
from simulation.world import World

from airflow_outbox.harvest.protocol import adoption
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger, Unread, expanded
from airflow_outbox.values.fence import Flushed

_RETRY_INTERVAL = 0.05


@dataclass(slots=True)
class Adoptions:
    """The adoptions of a history: when each was, in the world's count, and how often each value that was in the outbox
    then may be published once more. None may after an exchange of the table or its ids: the database and the ledger
    have lost nothing.
    """

    at: list[int] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)
    _known: tuple[int, int] = (0, 0)

    def has_lost(self, world: World) -> bool:
        """Whether the database or the ledger has lost something since the last adoption."""
        known, self._known = self._known, (world.database.undone, world.broker.losses)
        return known != self._known


async def adopt(world: World, adoptions: Adoptions, *, nothing_lost: bool = False) -> bool:
    """Adopt as soon as the database is up and no transaction is being ended; whether there was anything to adopt."""
    while not (world.database.up and _is_fenced(world)):
        await asyncio.sleep(_RETRY_INTERVAL)
    return _adopt(world, adoptions, nothing_lost=nothing_lost)


def _is_fenced(world: World) -> bool:
    """Whether no producer has a transaction under way, once all are initialised."""
    known = {f"{TRANSACTIONAL_ID}.{number}" for number in range(PRODUCERS)}
    under_way = 0
    for transactional_id in sorted(known.union(world.database.state.fence.transactional_ids)):
        try:
            world.broker.initialise(transactional_id)
        except Concurrent:
            under_way += 1
    return not under_way


def _adopt(world: World, adoptions: Adoptions, *, nothing_lost: bool) -> bool:
    """All at once: the real one holds the fence row to its end."""
    database, server = world.database, world.server
    view = UUID(int=world.random.getrandbits(128), version=4)
    row = database.state.fence
    server.set_fence(replace(row, view=view, backends=(), recorded=row.recorded or database.history))
    partition = world.broker.partition(LEDGER)
    records = [(record.offset, record.key, record.value) for record in partition.committed()]
    unread: list[Unread] = []
    ledger = Ledger.read(topic_id=str(world.broker.ledger_id), end=partition.end, records=records, unread=unread)
    plan = adoption.adopting(server.fence(view), ledger, unread)
    if not plan.differences:
        return False
    has_lost = adoptions.has_lost(world)
    for entry in plan.unpurged if nothing_lost else plan.certain:
        _complete(world, entry)
    if has_lost and not nothing_lost:
        adoptions.again.update(row.record.value for row in database.state.rows.values() if row.record.value)
    adoptions.at.append(world.tick())
    highest_id = max([plan.witness.highest_id, *database.state.rows])
    row = database.state.fence
    database.write("draw", max(database.state.last_drawn, highest_id))
    server.set_fence(
        replace(
            row,
            incarnation=max(row.incarnation, plan.last_incarnation) + 1,
            recorded=database.history,
            witness=replace(plan.witness, highest_id=highest_id),
            begun_view=view,
            halted=None,
            flushed=Flushed(batch=plan.witness.batch),
        )
    )
    return True


def _complete(world: World, entry: Entry) -> None:
    server = world.server
    if entry.parked:
        server.park(entry.parked, lambda row: not entry.snapshot.sees(row.transaction_id))
    if entry.unparked:
        server.unpark(expanded(entry.unparked))
    if entry.runs:
        server.delete(entry.ids(), unless=lambda row: not entry.snapshot.sees(row.transaction_id))
