"""An operator's process that promotes a cluster which lacks records, since no other can be reached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from uuid import UUID

from simulation.log import kafka_link
from simulation.loop import SimulatedProcess
from simulation.world import Design, World

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.ports import Table, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.promoting import Promoting
from airflow_outbox.values.fence import LedgerRow

_RETRY_INTERVAL = 0.5


class Promotion:
    """One run of the command; `missing` is what is missing on the cluster afterwards."""

    def __init__(self, world: World, design: Design, cluster: str, *, accept_loss: bool = False) -> None:
        self.process = SimulatedProcess()
        self.missing: Sequence[str] = ()
        self._world = world
        self._design = design
        self._cluster = cluster
        self._accept_loss = accept_loss
        self.running = self.process.context.run(asyncio.create_task, self._run())

    async def _run(self) -> None:
        world, cluster = self._world, self._cluster
        link = kafka_link(world.network, world.brokers[cluster])

        def log_of(shard: int) -> TransactionalLogFactory:
            async def new_log() -> TransactionalLog:
                return self._design.transactional_log(world.brokers[cluster], link, shard=shard)

            return new_log

        def new_table(shard: int) -> Table:
            return self._design.table(world.server.of(shard), world.network, reshards=True)

        promoting = Promoting(
            shards=len(world.database.state.present),
            new_table=new_table,
            new_logs=lambda shard: {cluster: log_of(shard)},
            write=self._write,
            new_view=lambda: UUID(int=world.random.getrandbits(128), version=4),
        )
        await promoting(cluster, accept_loss=self._accept_loss)

    async def _write(self, views: Mapping[int, UUID], rows: Mapping[int, LedgerRow], missing: Sequence[str]) -> None:
        self._world.server.promote(views, self._cluster, rows)
        self.missing = missing


async def promoted(world: World, design: Design, cluster: str) -> None:
    """Promote a cluster, again and again until it is. Now and then the command is killed amid its work."""
    while world.database.state.fence.primary != cluster:
        promotion = Promotion(world, design, cluster)
        if world.random.random() < 0.3:
            await asyncio.sleep(2 * world.random.random())
            promotion.process.kill()
        else:
            with contextlib.suppress(OutboxError):
                await promotion.running
        await asyncio.sleep(_RETRY_INTERVAL)
