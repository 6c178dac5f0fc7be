"""Sending: a batch's Kafka transaction is begun, filled and handed over to be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from airflow_outbox.errors import KafkaError, RecordsRefusedError
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import Commitment
from airflow_outbox.harvest.protocol.parking import Caution
from airflow_outbox.values.metrics import Stage
from airflow_outbox.values.pages import ID, OutboxRow, total_size
from airflow_outbox.values.refusals import Refusal


class Sending:
    """Sends the batches of one term, one after the other.

    - `filled`: the batches to commit, in order; None: no more will come. Each is done (`task_done`) once committed.
    - `is_filling`: whether a batch is begun and not filled yet
    - `heard`: set when Kafka may have told which earlier commits can be read
    """

    def __init__(
        self,
        *,
        view: UUID,
        table: Table,
        logs: Logs,
        commitment: Commitment,
        caution: Caution,
        pace: Pace,
        measures: Measures,
    ) -> None:
        self.filled: asyncio.Queue[Batch | None] = asyncio.Queue()
        self.is_filling = False
        self.heard = asyncio.Event()
        self._view = view
        self._table = table
        self._logs = logs
        self._commitment = commitment
        self._caution = caution
        self._pace = pace
        self._measures = measures
        self._began = 0.0

    async def begin(self, *, unparked: Sequence[int] = ()) -> Batch:
        """Begin a batch of records of the outbox, or of `unparked` ones.

        Waits until its producers are free. One with a new epoch may have fenced a successor: the fence row is read.
        Raises FencedError, KafkaError, PostgresError.
        """
        self.is_filling = True
        if await self._logs.begin():
            await self._table.require_fence(self._view)
        self._began = self._measures.now()
        return Batch(self._commitment.begin(), unparked=[*unparked])

    async def refusals(self, rows: Sequence[OutboxRow], *, parked: bool = False) -> Mapping[int, Refusal]:
        """Which of these rows, of the outbox or `parked` ones, can't be published, by id. Asks Kafka in doubt only."""
        refusals = await self._logs.examine(rows, again=parked)
        known = self._caution.known(rows, at=asyncio.get_running_loop().time(), parked=parked)
        return {**known, **refusals} if known else refusals

    async def send(self, batch: Batch, rows: Sequence[OutboxRow], *, parked: bool = False) -> None:
        """Add rows, of the outbox or `parked` ones, to the batch. Wait until Kafka has them.

        Raises RecordsRefusedError, after what is found out about the refused records is noted, and other KafkaErrors.
        """
        now = asyncio.get_running_loop().time
        for portion in self._caution.portions(rows, parked=parked):
            began = now()
            try:
                batch.add(await self._logs.publish(portion))
                self._pace.took(total_size(portion), seconds=now() - began)
                self.heard.set()
            except RecordsRefusedError as error:
                await self.filled.join()  # records before it are not uncertain
                ids = error.records or [row[ID] for row in portion]
                certain = bool(error.records) or len(ids) == 1
                self._caution.failed(
                    ids,
                    error.reason,
                    certain=certain,
                    explained=error.explained,
                    unclear=error.unclear,
                    parked=parked,
                )
                self._caution.topics.refused(error.topics, error.reason, at=now())
                raise
            except KafkaError:
                self._pace.failed(total_size(portion), seconds=now() - began)
                raise

    async def hand_over(self, batch: Batch) -> None:
        """The batch is filled: it is committed in its turn."""
        self._measures.took(Stage.PUBLISH, self._began)
        for log in range(len(self._logs)):
            self._commitment.prepared(log)
        self.is_filling = False
        self.heard.set()  # a waiter for the next transaction may have to ask
        await self.filled.put(batch)

    async def committed(self) -> None:
        """Wait until all batches handed over are committed."""
        await self.filled.join()

    async def end(self) -> None:
        """No more batches come."""
        await self.filled.put(None)
