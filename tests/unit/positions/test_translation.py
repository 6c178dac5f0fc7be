"""Translated offsets, compared with a model of both clusters that knows every record and where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.position_model import OTHER, PARTITIONS, ModelBatch, ModelCluster

from airflow_outbox.harvest.protocol import extents as extents_module
from airflow_outbox.positions import index as index_module
from airflow_outbox.positions.translation import Translation, Why, translate

EXAMPLES = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents_module, "LATEST_INTERVAL", 3)
    monkeypatch.setattr(index_module, "BLOCK", 4)


@dataclass(slots=True)
class History:
    """What was published to two clusters. `coming` are the records that a cluster lacks and will get, by cluster.

    `is_plain`: both have all batches, with their extents, and keep everything. `is_over`: none is under way.
    """

    clusters: tuple[ModelCluster, ModelCluster]
    coming: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    is_plain: bool = True
    is_over: bool = True


PLAIN = ("both", "both", "both", "take over")
ODD = ("lost", "rival", "skip set", "without extents", "made again", "adopted", "refused")


@st.composite
def histories(draw: st.DrawFn, *, shards: st.SearchStrategy[int], odd: bool) -> History:
    """Rounds: in each, some shards publish one or two batches, in another order on each cluster."""
    history = History((ModelCluster(shards_ := draw(shards)), ModelCluster(shards_)))
    one, other = history.clusters
    numbers, incarnation = [0] * shards_, 1
    records = iter(range(1_000_000))
    fillers, choose = _fillers(draw), _choice(draw)

    def batches() -> list[ModelBatch]:
        found = []
        for shard in range(shards_):
            for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
                numbers[shard] += 1
                sizes = draw(st.tuples(*[st.sampled_from((0, 1, 2, 4))] * PARTITIONS))
                content = tuple(tuple(next(records) for _ in range(size)) for size in sizes)
                found.append(ModelBatch(shard, numbers[shard], content, incarnation=incarnation))
        return found

    def publish(cluster: ModelCluster, found: list[ModelBatch], *, lacks: frozenset[ModelBatch] = frozenset()) -> None:
        cluster.publish(found, fillers, choose, without_extents=lacks)

    for _ in range(draw(st.integers(1, 7))):
        event = draw(st.sampled_from(PLAIN + ODD if odd else PLAIN))
        history.is_plain &= event in PLAIN
        side = draw(st.integers(0, 1))
        chosen, peer = history.clusters[side], history.clusters[1 - side]
        if event == "both":
            found = batches()
            publish(one, found)
            publish(other, found)
        elif event == "take over":
            for cluster in history.clusters:
                for shard in cluster.extents:
                    shard.take_over()
        elif event == "lost":
            publish(chosen, batches())
        elif event == "rival":  # an old leader's last batch: the others have its records under another view
            found = batches()
            publish(chosen, [_rival(batch) for batch in found])
            publish(peer, found)
        elif event == "skip set":
            found = batches()
            publish(chosen, found)
            publish(peer, [_without_some(draw, batch) for batch in found])
        elif event == "without extents":
            found = batches()
            publish(one, found, lacks=_some(draw, found))
            publish(other, found, lacks=_some(draw, found))
        elif event == "made again":
            chosen.make_again()
        elif event == "adopted":
            incarnation += 1
            if draw(st.booleans()):
                numbers[:] = [0] * shards_
        elif event == "refused":
            for log in chosen.logs:
                log += [OTHER] * draw(st.integers(0, 5))
    _end(draw, history, batches(), fillers, odd=odd and draw(st.booleans()))
    if odd:
        _keep_less(draw, history)
    return history


def _some(draw: st.DrawFn, found: list[ModelBatch]) -> frozenset[ModelBatch]:
    return frozenset(draw(st.sets(st.sampled_from(found)))) if found else frozenset()


def _end(draw: st.DrawFn, history: History, found: list[ModelBatch], fillers: Iterator[int], *, odd: bool) -> None:
    """The last batches are on both clusters, or one of them lacks them yet, or has them in an open transaction. If
    `odd`, some have no extents.
    """
    history.is_plain &= not odd
    lacking = [_some(draw, found) if odd else frozenset[ModelBatch]() for _ in range(2)]
    side, state = draw(st.integers(0, 1)), draw(st.sampled_from(("both", "lags", "open")))
    history.is_over = state == "both"
    chosen, peer = history.clusters[side], history.clusters[1 - side]
    peer.publish(found, fillers, _choice(draw), without_extents=lacking[0])
    if state == "lags":
        history.coming[side].update(record for batch in found for part in batch.records for record in part)
    else:
        chosen.publish(found, fillers, _choice(draw), without_extents=lacking[1], are_open=state == "open")
    for log in (*chosen.logs, *peer.logs):
        log += [OTHER] * next(fillers)


def _keep_less(draw: st.DrawFn, history: History) -> None:
    """Retention and compaction, on each side as it comes."""
    for cluster in history.clusters:
        for partition, log in enumerate(cluster.logs):
            if draw(st.booleans()):
                cluster.starts[partition] = draw(st.integers(0, len(log)))
                history.is_plain = False
            for at in draw(st.lists(st.integers(0, 40), max_size=3)):
                if at < len(log):
                    log[at] = OTHER
        for shard in cluster.extents:
            if draw(st.integers(0, 3)) == 0:
                shard.start = draw(st.integers(0, shard.end))
                history.is_plain = False


def _fillers(draw: st.DrawFn) -> Iterator[int]:
    """How many offsets of others come before a record."""
    while True:
        yield draw(st.sampled_from((0, 0, 0, 0, 1, 3)))


def _choice(draw: st.DrawFn) -> Callable[[list[Any]], Any]:
    return lambda queues: draw(st.sampled_from(queues))


def _rival(batch: ModelBatch) -> ModelBatch:
    """Another leader's batch with the same number, which divided the records in another way."""
    return replace(batch, view=8, records=tuple(part[::-1] for part in batch.records))


def _without_some(draw: st.DrawFn, batch: ModelBatch) -> ModelBatch:
    records = tuple(tuple(record for record in part if draw(st.booleans())) for part in batch.records)
    return replace(batch, records=records)


def check(history: History, side: int) -> Iterator[Translation]:
    """Translate every offset of one cluster; demand that nothing is skipped, and what is said of repetitions."""
    source, target = history.clusters[side], history.clusters[1 - side]
    for partition in range(PARTITIONS):
        on_source, on_target = source.offsets(partition), target.offsets(partition)
        from_, to = source.source(partition), target.target(partition)
        last = max(on_source.values(), default=-1)
        for offset in range(len(source.logs[partition]) + 1):
            found = translate(offset, from_, to)
            assert found is not None
            assert found.offset >= target.starts[partition]
            unread = {record for record, at in on_source.items() if at >= offset} | history.coming[side]
            for record in unread & on_target.keys():
                assert on_target[record] >= found.offset, (offset, record, found)
            again = [
                record for record, at in on_source.items() if at < offset and on_target.get(record, -1) >= found.offset
            ]
            if offset <= source.stable_offset(partition):  # else it read what was not committed
                assert found.again is None or len(again) <= found.again, (offset, again, found)
            if history.is_plain and history.is_over and offset > last:
                assert not again, (offset, again, found)
            yield found


@settings(max_examples=EXAMPLES, deadline=None)
@given(history=histories(shards=st.just(1), odd=False), side=st.integers(0, 1))
def test_one_shard_repeats_at_most_the_gaps_of_a_batch(history: History, side: int) -> None:
    for found in check(history, side):
        if found.why in (Why.WITHIN, Why.AFTER):
            assert found.again is not None
        if found.why is Why.AFTER:
            assert found.target is not None
            assert found.offset == found.target.last + 1


@settings(max_examples=EXAMPLES, deadline=None)
@given(history=histories(shards=st.just(1), odd=True), side=st.integers(0, 1))
def test_nothing_is_skipped_whatever_happened(history: History, side: int) -> None:
    assert [*check(history, side)]


@settings(max_examples=EXAMPLES, deadline=None)
@given(history=histories(shards=st.integers(2, 3), odd=False), side=st.integers(0, 1))
def test_several_shards_may_be_interleaved_in_other_ways(history: History, side: int) -> None:
    assert [*check(history, side)]


@settings(max_examples=EXAMPLES, deadline=None)
@given(history=histories(shards=st.integers(2, 3), odd=True), side=st.integers(0, 1))
def test_several_shards_skip_nothing_whatever_happened(history: History, side: int) -> None:
    assert [*check(history, side)]


def test_a_shard_whose_batches_have_no_extents_at_all_holds_all_groups_back() -> None:
    """Its leader does not write them. Its record is read last on one cluster, and is first on the other one."""
    clusters = ModelCluster(2), ModelCluster(2)
    known, unknown = ModelBatch(0, 1, ((0, 1), ())), ModelBatch(1, 1, ((2,), ()))
    for cluster, order in zip(clusters, ((known, unknown), (unknown, known)), strict=True):
        for batch in order:
            cluster.publish([batch], repeat(0), lambda queues: queues[0], without_extents=frozenset({unknown}))
    history = History(clusters, is_plain=False)
    assert {found.offset for found in check(history, 0)} == {0}
    assert [*check(history, 1)]


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(
    lacks=st.tuples(st.booleans(), st.booleans()),
    touched=st.tuples(*[st.integers(0, PARTITIONS - 1)] * 2),
    orders=st.tuples(*[st.sampled_from(((0, 1, 1), (1, 0, 1), (1, 1, 0)))] * 2),
)
def test_a_shard_without_extents_in_a_partition_holds_groups_back_unless_all_are_known(
    lacks: tuple[bool, bool], touched: tuple[int, int], orders: tuple[tuple[int, ...], ...]
) -> None:
    """Shard 0 has one batch, and shard 1 two, of which some have no extents."""
    history = History((ModelCluster(2), ModelCluster(2)), is_plain=False)
    known = ModelBatch(0, 1, ((0, 1), ()))
    others = [
        ModelBatch(1, n + 1, tuple((2 * n + 2, 2 * n + 3) if touched[n] == each else () for each in range(PARTITIONS)))
        for n in range(2)
    ]
    lacking = frozenset(batch for batch, lacks_it in zip(others, lacks, strict=True) if lacks_it)
    for cluster, order in zip(history.clusters, orders, strict=True):
        left = iter(others)
        for shard in order:
            batch = next(left) if shard else known
            cluster.publish([batch], repeat(0), lambda queues: queues[0], without_extents=lacking)
    assert [*check(history, 0), *check(history, 1)]
