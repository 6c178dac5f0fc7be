"""A request for a cluster that can't be caught up is refused, and ends no term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from support.harvesting import PATIENCE
from unit.harvest.protocol.test_ledger import FENCE

from airflow_outbox.errors import ConfigurationError, FencedError
from airflow_outbox.harvest.attaching import Attaching
from airflow_outbox.harvest.catch_up import CatchUp
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import TransactionalLog
from airflow_outbox.values.fence import Fence, LedgerRow, OperatorRequest

FENCE_OWING = replace(FENCE, owed={"b": LedgerRow()})
SAME = "b and primary are the same cluster, xyz. Give each of clusters its own bootstrap.servers"


class Table:
    """Keeps why requests were refused."""

    def __init__(self, fence: Fence = FENCE) -> None:
        self.fence = fence
        self.refused: list[tuple[UUID, str, str]] = []
        self.was_refused = asyncio.Event()

    async def take_over(self, view: UUID, *, after: object = ()) -> Fence:
        return self.fence

    async def refuse_attach(self, view: UUID, cluster: str, reason: str) -> None:
        self.refused.append((view, cluster, reason))
        self.was_refused.set()

    async def close(self) -> None: ...


async def same_cluster() -> TransactionalLog:
    raise ConfigurationError(SAME)


async def nothing() -> TransactionalLog:
    raise FencedError  # its producers would be fenced


async def _refused(new_log: Callable[[], Coroutine[Any, Any, TransactionalLog]], owed: Mapping[str, object]) -> str:
    table, view = Table(), uuid4()
    catch_up = CatchUp(
        view=view,
        shard=0,
        table=cast(Any, table),
        logs=cast(Any, [None]),
        new_logs={"b": new_log},
        owed=owed.keys(),
        commitment=cast(Any, SimpleNamespace(completed=0)),
        request=lambda: OperatorRequest(attach="b"),
        accounted=lambda: 0,
        is_busy=lambda: False,
    )
    running = asyncio.create_task(catch_up.run())
    refused = asyncio.create_task(table.was_refused.wait())
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait({running, refused}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), "the term would end"
    running.cancel()
    [(by, cluster, reason)] = table.refused
    assert (by, cluster) == (view, "b")
    return reason


async def test_a_cluster_that_leads_to_the_primary_is_refused() -> None:
    assert await _refused(same_cluster, {"b": None}) == SAME


async def test_a_cluster_that_counts_is_not_opened() -> None:
    assert await _refused(nothing, {"c": None}) == "it counts already"


async def test_nothing_is_opened_for_a_cluster_that_counts_when_it_is_to_be_attached() -> None:
    table = Table()
    view = await _attached(table, nothing)
    assert table.refused == [(view, "b", "it counts already")]


async def test_when_a_cluster_that_counts_is_not_configured_the_request_is_withdrawn_before_the_error() -> None:
    table = Table(FENCE_OWING)
    with pytest.raises(ConfigurationError, match="does not name"):
        await _attached(table, nothing, name="c")
    [(_, cluster, reason)] = table.refused
    assert cluster == "b"
    assert reason.startswith("the clusters that count could not be completed before: the outbox is published to")


async def _attached(
    table: Table, new_log: Callable[[], Coroutine[Any, Any, TransactionalLog]], name: str = "b"
) -> UUID:
    view = uuid4()
    attaching = Attaching(
        new_table=lambda _: cast(Any, table),
        new_logs=lambda _: {name: new_log},
        limits=Limits(),
        measures=Measures(asyncio.get_running_loop().time),
    )
    await attaching("b", view=view, after=(), successor=uuid4())
    return view
