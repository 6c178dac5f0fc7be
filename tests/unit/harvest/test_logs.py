"""The logs of a term: what is asked of all of them, and what their answers amount to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from unit.harvest.protocol.test_ledger import FENCE

from airflow_outbox.errors import ConfigurationError, HistoryError, KafkaError, OutboxError, RecordsRefusedError
from airflow_outbox.harvest.logs import Logs, at_once, opened
from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.values.fence import LedgerRow
from airflow_outbox.values.refusals import Cause, Refusal

BACKED_UP = replace(FENCE, backups={"b": LedgerRow()})


def log(
    *extents: Extent, new_epoch: bool = False, readable: int = 0, partitions: Mapping[str, int] | None = None
) -> Any:
    found = AsyncMock(unfenced=(), readable=readable)
    found.begin.return_value = new_epoch
    found.publish.return_value = extents
    found.choose_partitions = Mock(side_effect=lambda rows: [0 for _ in rows])
    found.passes = found.passes_too = Mock(return_value=False)
    found.partitions = Mock(return_value=dict(partitions or {}))
    return found


async def test_a_single_call_makes_no_task() -> None:
    async def call() -> Any:
        return asyncio.current_task()

    assert await at_once([call()]) == [asyncio.current_task()]
    assert asyncio.current_task() not in await at_once([call(), call()])


async def test_when_one_call_fails_the_others_are_given_up() -> None:
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(KafkaError):
        await at_once([cast("Any", AsyncMock(side_effect=KafkaError("gone")))(), _wait(waiting)])
    await asyncio.sleep(0)
    assert waiting.cancelled()


async def _wait(future: asyncio.Future[None]) -> None:
    await future


async def test_a_new_epoch_on_any_cluster_counts() -> None:
    assert not await Logs({"a": log(), "b": log()}).begin()
    assert await Logs({"a": log(), "b": log(new_epoch=True)}).begin()


async def test_a_record_that_any_cluster_refuses_is_refused() -> None:
    one, other = log(), log()
    one.examine.return_value = {1: Refusal(Cause.TOO_LARGE, "here")}
    other.examine.return_value = {1: Refusal(Cause.TOO_LARGE, "there"), 2: Refusal(Cause.UNKNOWN_TOPIC, "there")}
    refusals = await Logs({"a": one, "b": other}).examine([])
    reasons = {identity: refusal.reason for identity, refusal in refusals.items()}
    assert reasons == {1: "cluster a: here", 2: "cluster b: there"}


async def test_rows_that_all_clusters_are_known_to_take_are_gone_through_once() -> None:
    rows: Any = [(1, "t", "k", "v", [], [], None, 300, None), (2, "u", "k", "v", [], [], None, 7, None)]
    one, other, third = log(), log(), log()
    for each in (one, other, third):
        each.passes, each.passes_too = Mock(return_value=True), Mock(return_value=True)
        each.examine.return_value = {}
    logs = Logs({"a": one, "b": other, "c": third})
    assert not await logs.examine(rows)
    other.passes_too.assert_called_once_with({"t", "u"}, largest=300)
    third.passes_too.assert_called_once_with({"t", "u"}, largest=300)
    assert not other.passes.called
    assert not third.passes.called
    assert not one.examine.called
    assert not other.examine.called
    assert not third.examine.called


@pytest.mark.parametrize("doubting", ["a", "b", "c"])
async def test_rows_that_one_cluster_may_refuse_are_examined(doubting: str) -> None:
    clusters = {name: log() for name in ("a", "b", "c")}
    for name, each in clusters.items():
        each.passes = each.passes_too = Mock(return_value=name != doubting)
        each.examine.return_value = {1: Refusal(Cause.TOO_LARGE, "there")} if name == doubting else {}
    refusals = await Logs(clusters).examine([])
    assert refusals[1].reason == f"cluster {doubting}: there"


async def test_rows_that_pass_are_refused_where_their_topic_is_divided_otherwise() -> None:
    rows: Any = [(1, "t", "k", "v", [], [], None, 3, None)]
    one, other = log(partitions={"t": 4}), log(partitions={"t": 6})
    one.passes = other.passes_too = Mock(return_value=True)
    assert (await Logs({"a": one, "b": other}).examine(rows))[1].cause is Cause.PARTITION


async def test_parked_rows_are_always_examined() -> None:
    one, other = log(), log()
    for each in (one, other):
        each.passes = each.passes_too = Mock(return_value=True)
        each.examine.return_value = {}
    assert not await Logs({"a": one, "b": other}).examine([], again=True)
    assert one.examine.called
    assert other.examine.called


async def test_a_topic_that_is_divided_otherwise_on_a_backup_is_refused() -> None:
    rows: Any = [(1, "same"), (2, "fewer"), (3, "more"), (4, "not there")]
    one = log(partitions={"same": 4, "fewer": 4, "more": 4, "not there": 4})
    other = log(partitions={"same": 4, "fewer": 2, "more": 6})
    for each in (one, other):
        each.examine.return_value = {}
    refusals = await Logs({"a": one, "b": other}).examine(rows)
    assert {identity: refusal.cause for identity, refusal in refusals.items()} == {
        2: Cause.PARTITION,
        3: Cause.PARTITION,
    }
    assert refusals[3].reason.startswith("cluster b: topic more has 6 partitions there and 4 on the primary")
    assert not await Logs({"a": one}).examine(rows)


@pytest.mark.parametrize(
    "error", [KafkaError("gone"), RecordsRefusedError("gone", records=[1]), HistoryError("gone")], ids=type
)
async def test_an_error_names_the_cluster_where_there_are_several(error: OutboxError) -> None:
    one, other = log(), log()
    other.commit.side_effect = error
    with pytest.raises(type(error), match=r"^cluster b: gone") as told:
        await Logs({"a": one, "b": other}).on(1, lambda _, log: log.commit([]))
    if isinstance(told.value, KafkaError):
        assert told.value.cluster == "b"
    if isinstance(told.value, RecordsRefusedError):
        assert (told.value.reason, told.value.records) == ("cluster b: gone", [1])


async def test_an_error_names_no_cluster_where_there_is_one() -> None:
    single = log()
    single.commit.side_effect = KafkaError("gone")
    with pytest.raises(KafkaError, match=r"^gone"):
        await Logs({"a": single}).on(0, lambda _, log: log.commit([]))


async def test_records_go_into_the_same_partitions_everywhere() -> None:
    here, there = Extent("t", 0, 1, 3, 3), Extent("t", 0, 101, 103, 3)
    assert await Logs({"a": log(here), "b": log(there)}).publish([]) == [(here,), (there,)]
    with pytest.raises(KafkaError, match="on cluster b"):
        await Logs({"a": log(here), "b": log(replace(there, partition=1))}).publish([])


async def test_partitions_are_chosen_once_for_all_clusters() -> None:
    rows: Any = [(1, "t"), (2, "t")]
    one, other = log(), log()
    await Logs({"a": one, "b": other}).publish(rows)
    one.choose_partitions.assert_called_once_with(rows)
    assert not other.choose_partitions.called
    for each in (one, other):
        each.publish.assert_awaited_once_with(rows, [0, 0])


async def test_records_are_placed_for_a_cluster_that_gets_them_later() -> None:
    single = log(Extent("t", 0, 1, 3, 3))
    await Logs({"a": single}).publish([])
    assert not single.choose_partitions.called
    await Logs({"a": single}, is_owed=True).publish([])
    assert single.choose_partitions.called


def test_what_recovery_has_replayed_is_none_of_the_terms_commits() -> None:
    logs = Logs({"a": log(readable=3), "b": log(readable=4)})
    logs.replayed(1)
    assert (logs.readable(0), logs.readable(1)) == (3, 3)


async def test_a_log_is_opened_on_each_cluster_that_counts_and_closed() -> None:
    made = {name: log() for name in ("primary", "b", "c")}
    factories = {name: AsyncMock(return_value=found) for name, found in made.items()}
    async with opened(cast("Any", factories), BACKED_UP) as logs:
        assert (logs.clusters, logs[0], logs[1]) == (("primary", "b"), made["primary"], made["b"])
        made["b"].close.assert_not_awaited()
    made["primary"].close.assert_awaited_once()
    made["b"].close.assert_awaited_once()
    factories["c"].assert_not_awaited()


async def test_a_cluster_that_is_not_configured_is_refused() -> None:
    factories: Any = {"primary": Mock()}
    with pytest.raises(ConfigurationError, match="cluster b, which this configuration does not name"):
        async with opened(factories, BACKED_UP):
            pass
    factories["primary"].assert_not_called()
