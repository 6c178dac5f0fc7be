"""OutboxWatermarkTrigger: tells an asset what is published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.listener import listener
from airflow_outbox.tickets.waiters import Account
from airflow_outbox.triggers.asset_events import Position, position_key, publication

_FIRST_DELAY = 1.0
_LONGEST_DELAY = 60.0


class OutboxWatermarkTrigger(BaseEventTrigger):
    """Tell an asset what is published: for an `AssetWatcher`; `airflow_outbox.assets` makes assets with one.

    An event comes at most once a second, when there is something new: `{"outbox": …, "outbox_id": …, "incarnation": …,
    "watermark": [snapshot of each shard], "batches": [first, last], "topics": {topic: records}, "published": records,
    "totals": {topic: records}}`. `totals` count all that was published to these topics in this incarnation. All the
    records that it counts are committed in Kafka. Source transactions are whole in it: those that the watermark sees
    are published as a whole. The trigger does not harvest; any harvesting process moves the watermark.

    No record is left out, and none is counted twice. The asset's state store keeps how far the asset was told; it moves
    in the transaction that stores the event (`airflow_outbox.asset_listener`). So the first event after a pause, or
    after a triggerer's death, covers what was published meanwhile. The very first event counts everything published in
    this incarnation, and before Airflow 3.3, which has no such store, so does the first one of each triggerer.

    There are no events for an outbox that is harvested at least once, which has no watermark; the log says so. Nor are
    there any while harvesting is halted, or the database has another history than the harvested one.

    `topics` limits the news to these topics (None: all). `asset` is the asset's URI, so each asset has its own trigger.
    """

    supports_triggerer_queue = False

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        topics: Sequence[str] | None = None,
        asset: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        self.topics = None if topics is None else list(topics)
        self.asset = asset
        self._delivery: str | None = None
        self._doubt: str | None = None
        self._told: Position | None = None
        self._told_of: UUID | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_outbox.triggers.watermark.OutboxWatermarkTrigger",
            {
                "postgres_conn_id": self.postgres_conn_id,
                "outbox": self.outbox,
                "topics": self.topics,
                "asset": self.asset,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        delay = _FIRST_DELAY
        while True:
            begun = time.monotonic()
            try:
                async for payload in self._publications():
                    yield TriggerEvent(payload)
            except Exception as error:  # an asset is not given up
                if time.monotonic() - begun > _LONGEST_DELAY:
                    delay = _FIRST_DELAY
                self.log.warning("outbox %s can't be followed: %s. Next try in %.0f s", self.outbox, error, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _publications(self) -> AsyncIterator[dict[str, Any]]:
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        listening = await listener(hook.data_source)
        async with aclosing(listening.accounts(OutboxName.parse(self.outbox))) as accounts:
            async for account in accounts:
                self._tell_of_delivery(account.watermarks.delivery)
                self._tell_of_doubt(account.watermarks.doubt)
                if account.watermarks.doubt is None and (payload := await self._news(account)) is not None:
                    yield payload

    def _tell_of_delivery(self, delivery: str | None) -> None:
        """Log once that there is nothing to tell the asset, and once when there is again."""
        if delivery == self._delivery:
            return
        if delivery == "at_least_once":
            self.log.warning(
                "asset %s gets no events: outbox %s is harvested at least once, so nobody can tell which "
                "transactions are published. Set `delivery: exactly_once`",
                self.asset,
                self.outbox,
            )
        elif self._delivery == "at_least_once":
            self.log.info("asset %s gets events: outbox %s is harvested exactly once now", self.asset, self.outbox)
        self._delivery = delivery

    def _tell_of_doubt(self, doubt: str | None) -> None:
        """Log once why nobody can tell what is published, and once when it can be told again."""
        if doubt == self._doubt:
            return
        if doubt is not None:
            self.log.warning(
                "asset %s gets no events: nobody can tell what outbox %s has published: %s",
                self.asset,
                self.outbox,
                doubt,
            )
        else:
            self.log.info("asset %s gets events of outbox %s again", self.asset, self.outbox)
        self._doubt = doubt

    async def _news(self, account: Account) -> dict[str, Any] | None:
        now, outbox_id = Position.of(account, self.topics), account.watermarks.outbox_id
        if self._told is None or self._told_of != outbox_id:
            store = getattr(self, "asset_state_store", None)  # from Airflow 3.3 on
            stored = await store.aget(position_key(outbox_id)) if store is not None else None
            self._told, self._told_of = Position.read(stored) or Position(now.incarnation, 0), outbox_id
        payload = publication(self.outbox, account, now, self._told)
        if payload is not None:
            self._told = now
        return payload
