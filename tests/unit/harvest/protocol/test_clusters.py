"""The last batch of several clusters: which of them lack it, and when they do not belong together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from unit.harvest.protocol.test_ledger import FENCE

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest.protocol.clusters import (
    accepted_from,
    identical,
    incomplete,
    owed_from,
    require_all_kept,
    require_empty,
    require_same_places,
    skipping,
)
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Head, Ledger
from airflow_outbox.harvest.protocol.recovery import Recovery
from airflow_outbox.values.fence import LedgerPosition, LedgerRow, Skipped
from airflow_outbox.values.records import Snapshot

THERE = (Extent("t", 0, 5, 9, 5), Extent("t", 1, 0, 0, 1))
ELSEWHERE = (Extent("t", 1, 7, 7, 1), Extent("t", 0, 1, 6, 5))
"""The same partitions, at other offsets."""


def entry(batch: int, *, extents: tuple[Extent, ...] = THERE) -> Entry:
    return Entry(batch, UUID(int=1), 1, Snapshot(1, 1), ((batch, batch),), extents, outbox_id=UUID(int=2), shard=0)


def ending(batch: int, *entries: Entry) -> Recovery:
    return Recovery(LedgerPosition(batch=batch), entries, ())


def test_clusters_with_the_same_batches_lack_nothing() -> None:
    found = {"a": ending(8, entry(7), entry(8)), "b": ending(8, entry(7), entry(8, extents=ELSEWHERE))}
    assert incomplete(found) is None
    assert incomplete({"a": ending(0), "b": ending(0)}) is None
    assert incomplete({"a": ending(8, entry(8))}) is None


def test_the_last_batch_is_lacking_on_the_backups_that_it_did_not_reach() -> None:
    found = {"a": ending(8, entry(7), entry(8)), "b": ending(7, entry(7)), "c": ending(8, entry(7), entry(8))}
    assert incomplete(found) == (entry(8), [1])
    assert incomplete({**found, "c": ending(7, entry(7))}) == (entry(8), [1, 2])


def test_a_batch_that_the_promoted_cluster_lacks_is_completed_there() -> None:
    found = {"b": ending(7, entry(7)), "c": ending(8, entry(7), entry(8))}
    assert incomplete(found, is_promoted=True) == (entry(8), [0])


@pytest.mark.parametrize(
    ("backup", "difference"),
    [
        (ending(9, entry(8), entry(9)), "batch 9 is on cluster b, but not on a"),
        (ending(6), "cluster b ends with batch 6, but a with batch 8"),
        (ending(8, replace(entry(8), view=UUID(int=3))), "batch 8 on cluster b is another one than that on a"),
        (ending(8, replace(entry(8), runs=((1, 2),))), "batch 8 on cluster b is another one"),
        (ending(7, replace(entry(7), outbox_id=UUID(int=3))), "batch 7 on cluster b is another one"),
    ],
)
def test_clusters_that_do_not_belong_together_are_refused(backup: Recovery, difference: str) -> None:
    with pytest.raises(HistoryError, match=difference):
        incomplete({"a": ending(8, entry(7), entry(8)), "b": backup})


def test_a_batch_is_the_same_wherever_its_records_are() -> None:
    assert identical(entry(8), entry(8, extents=ELSEWHERE))
    assert not identical(entry(8), replace(entry(8), view=UUID(int=3)))


def test_records_in_other_partitions_are_refused() -> None:
    require_same_places(THERE, ELSEWHERE, cluster="b")
    with pytest.raises(KafkaError, match="records of t go into other partitions on cluster b than on the primary"):
        require_same_places(THERE, THERE[:1], cluster="b")


OWED = replace(FENCE, witness=LedgerPosition("topic", 6, 40, 99), owed={"b": LedgerRow()})
"""The fence row as it concerns a cluster that had batch 6 when it was detached."""


def written(*entries: Entry, batch: int, topic_id: str = "topic", outbox_id: UUID = FENCE.outbox_id) -> Ledger:
    head = Head(outbox_id, FENCE.incarnation, UUID(int=1), batch, 6, 99, beats=0)
    return Ledger(topic_id, 60, head, 55, entries)


def test_an_owed_cluster_goes_on_after_what_it_has() -> None:
    published = {batch: entry(batch) for batch in (7, 8, 9)}
    found = owed_from(OWED, written(entry(7, extents=ELSEWHERE), batch=7), published, last=9)
    assert (found.witness.batch, found.witness.offset, found.unpurged) == (7, 55, ())
    assert owed_from(OWED, written(batch=6), published, last=9).witness.batch == 6


@pytest.mark.parametrize(
    ("ledger", "difference"),
    [
        (written(batch=6, topic_id="other"), "deleted and recreated"),
        (replace(written(batch=6), head=None), "the ledger is empty, but batch 6 was in it"),
        (written(batch=5), "the ledger ends with batch 5, but batch 6 was in it"),
        (written(batch=6, outbox_id=UUID(int=7)), "the ledger belongs to outbox"),
        (
            written(*map(entry, (7, 8, 9, 10)), batch=10),
            "batch 10 is there, but nowhere else: the last one is 9. .*--accept",
        ),
        (written(replace(entry(7), runs=((7, 8),)), batch=7), "batch 7 is another one there than elsewhere"),
        (written(entry(8), batch=8), "batch 7 is another one there than elsewhere"),
        (written(replace(entry(7), view=UUID(int=9)), batch=7), "batch 7 is another one there than elsewhere"),
    ],
)
def test_an_owed_cluster_that_has_anything_else_is_refused(ledger: Ledger, difference: str) -> None:
    with pytest.raises(HistoryError, match=difference):
        owed_from(OWED, ledger, {batch: entry(batch) for batch in (7, 8, 9)}, last=9)


def test_an_accepted_cluster_goes_on_after_what_all_have_and_what_it_has_alone_is_named() -> None:
    alone = [replace(entry(8), view=UUID(int=9), unparked=((4, 4),)), replace(entry(9), view=UUID(int=9))]
    ours = [replace(each, outbox_id=FENCE.outbox_id, incarnation=FENCE.incarnation) for each in alone]
    ledger = written(entry(7), *ours, batch=9)
    ledger = replace(ledger, head=replace(ledger.head, kept=((7, 1), (8, 1), (9, 1))))
    found, those = accepted_from(OWED, ledger, {batch: entry(batch) for batch in (7, 8, 9)})
    assert (found.witness.batch, found.witness.offset, found.kept, list(those)) == (7, 55, ((7, 1),), ours)
    skipped = skipping(Skipped(1, ((20, 21),)), those, incarnation=1)
    assert skipped == Skipped(1, ((8, 9), (20, 21)), ((4, 4),))
    assert skipping(skipped, (), incarnation=2) is None


def test_batches_that_were_passed_over_have_no_records() -> None:
    last = replace(entry(9), view=UUID(int=9), outbox_id=FENCE.outbox_id, incarnation=FENCE.incarnation)
    ledger = written(entry(7), last, batch=9)
    ledger = replace(ledger, head=replace(ledger.head, kept=((7, 1), (9, 1))))  # type: ignore[type-var]
    found, alone = accepted_from(OWED, ledger, {7: entry(7)})
    assert (found.witness.batch, list(alone)) == (7, [last])
    ledger = replace(ledger, head=replace(ledger.head, kept=((7, 1), (8, 1), (9, 1))))  # type: ignore[type-var]
    with pytest.raises(HistoryError, match="nobody can tell which records batch 8 there has"):
        accepted_from(OWED, ledger, {7: entry(7)})


def test_an_accepted_cluster_has_to_know_which_records_it_has() -> None:
    for ledger in (written(entry(7), batch=8), written(entry(7), entry(8), batch=8)):  # gone, or another outbox's
        with pytest.raises(HistoryError, match="nobody can tell which records batch 8 there has"):
            accepted_from(OWED, ledger, {7: entry(7)})


def test_a_cluster_that_has_nothing_alone_is_accepted_like_any_other() -> None:
    published = {batch: entry(batch) for batch in (7, 8)}
    ledger = written(entry(7), batch=7)
    assert accepted_from(OWED, ledger, published) == (owed_from(OWED, ledger, published, last=8), ())


def test_records_that_a_cluster_has_already_are_not_expected_a_second_time() -> None:
    require_same_places(THERE, THERE[1:], cluster="b", wanted=Counter({("t", 1): 1}))
    with pytest.raises(KafkaError, match="other partitions"):
        require_same_places(THERE, THERE, cluster="b", wanted=Counter({("t", 1): 1}))
    other = (Extent("t", 2, 0, 0, 1),)
    with pytest.raises(KafkaError, match="other partitions"):
        require_same_places(THERE, other, cluster="b", wanted=Counter({("t", 2): 1}))


def test_a_cluster_that_lacks_what_is_not_kept_any_more_is_refused() -> None:
    require_all_kept([entry(8), entry(7)], after=6, upto=8)
    with pytest.raises(HistoryError, match=r"it lacks batch 7, which is not kept any more.*clusters reset"):
        require_all_kept([entry(8), entry(9)], after=6, upto=9)


def test_only_an_empty_cluster_can_start_from_now() -> None:
    require_empty(OWED, replace(written(batch=6), head=None))
    with pytest.raises(HistoryError, match="ends with batch 6, so it is not empty"):
        require_empty(OWED, written(batch=6))


STARTED = replace(
    entry(6), view=UUID(int=9), runs=(), extents=(), outbox_id=FENCE.outbox_id, incarnation=FENCE.incarnation
)


def test_a_start_without_records_that_postgres_does_not_know_counts_for_nothing() -> None:
    ledger = written(STARTED, batch=6, topic_id="made again")
    ledger = replace(ledger, head=replace(ledger.head, kept=((6, 1),)))  # type: ignore[type-var]
    require_empty(OWED, ledger)
    for other in (
        replace(ledger, topic_id="topic"),
        replace(ledger, entries=(replace(STARTED, runs=((1, 1),)),)),
        replace(ledger, entries=(replace(STARTED, incarnation=7),)),
        replace(ledger, entries=(entry(5), STARTED)),
        written(STARTED, batch=6, topic_id="made again"),
    ):
        with pytest.raises(HistoryError, match="is not empty"):
            require_empty(OWED, other)
