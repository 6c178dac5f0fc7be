"""Clusters: what recovery finds on several logs is one history, or nothing goes on.

Each log was compared with the fence row by itself (`protocol.recovery`). Together they show how far the last batch came
(`protocol.commitment`): at most one batch is on some logs and not on others, and never on a backup alone, unless the
primary is lost and a backup was promoted. It is completed on all: its records are in Postgres still, since no batch is
completed before all have it.

Batches are joined by *identity*: outbox id, incarnation, shard, view and number, with the exact records. A number alone
may be given twice: by the leader of a lost primary, and by the one that went on without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Head, Ledger, expanded, runs
from airflow_outbox.harvest.protocol.recovery import Recovery, require_no_rival
from airflow_outbox.values.fence import Fence, Skipped


def identical(one: Entry, other: Entry) -> bool:
    """Whether two entries, on whichever clusters, are of the same batch. Its offsets may differ."""
    return replace(one, extents=()) == replace(other, extents=())


def incomplete(found: Mapping[str, Recovery], *, is_promoted: bool = False) -> tuple[Entry, list[int]] | None:
    """Return the batch that is committed on some clusters only, and the numbers of the logs that lack it; None: all
    clusters have the same batches. `found` is in the order of the logs, the primary first.

    `is_promoted`: the primary was a backup when the batch was committed, so that another one may have it alone. Raises
    HistoryError if the clusters do not belong together.
    """
    ends = {cluster: recovery.witness.batch for cluster, recovery in found.items()}
    primary, last = next(iter(ends)), max(ends.values())
    furthest = next(cluster for cluster, end in ends.items() if end == last)
    entries = {entry.batch: entry for entry in found[furthest].unpurged}
    if ends[primary] < last and not is_promoted:
        raise HistoryError(f"batch {last} is on cluster {furthest}, but not on {primary}")
    for cluster, recovery in found.items():
        if ends[cluster] < last - 1:
            raise HistoryError(f"cluster {cluster} ends with batch {ends[cluster]}, but {furthest} with batch {last}")
        for entry in recovery.unpurged:
            if entry.batch not in entries or not identical(entry, entries[entry.batch]):
                raise HistoryError(f"batch {entry.batch} on cluster {cluster} is another one than that on {furthest}")
    lacking = [number for number, end in enumerate(ends.values()) if end < last]
    return (entries[last], lacking) if lacking else None


def require_same_places(
    ones: Iterable[Extent], others: Iterable[Extent], *, cluster: str, wanted: Counter[tuple[str, int]] | None = None
) -> None:
    """Raise KafkaError if the same records went into other partitions on this cluster. `wanted`: this many of them were
    sent there, by topic and partition (None: all).
    """
    there, found = _counts(ones), _counts(others)
    expected = there if wanted is None else wanted
    if expected != found or expected - there:
        topics = " and ".join(sorted({topic for topic, _ in there.keys() | found.keys()}))
        raise KafkaError(
            f"records of {topics} go into other partitions on cluster {cluster} than on the primary. Give the topic "
            "as many partitions there"
        )


def _counts(extents: Iterable[Extent]) -> Counter[tuple[str, int]]:
    counts: Counter[tuple[str, int]] = Counter()
    for extent in extents:
        counts[extent.topic, extent.partition] += extent.count
    return counts


EMPTY_IT = (
    "Delete its topics, the ledger included, make them again, run `airflow-outbox init`, and then "
    "`airflow-outbox clusters reset NAME`"
)
"""The remedy for a cluster that can't get what it lacks."""
ACCEPT_IT = "`airflow-outbox clusters attach NAME --accept` leaves it there, and gives the cluster only what it lacks"
"""The remedy for a cluster that has batches which no other has."""


def owed_from(fence: Fence, ledger: Ledger, published: Mapping[int, Entry], *, last: int) -> Recovery:
    """Return where to go on with a cluster that is owed records.

    `ledger` is the one that it has now, and `fence` the fence row as it concerns that cluster. `published` has the
    entries of all batches that others got since its witness, up to the `last` one.

    Raises HistoryError unless all that it has belongs to the present history. A cluster may hold less than others, but
    nothing else: a batch of the same number is another one unless its identity is the same.
    """
    _require_sound(fence, ledger)
    for batch in _alone(fence, ledger, published):
        if batch > last:
            raise HistoryError(f"batch {batch} is there, but nowhere else: the last one is {last}. {ACCEPT_IT}")
        raise HistoryError(f"batch {batch} is another one there than elsewhere. {ACCEPT_IT}")
    return _position(fence, ledger)


def accepted_from(fence: Fence, ledger: Ledger, published: Mapping[int, Entry]) -> tuple[Recovery, Sequence[Entry]]:
    """Return where to go on with an owed cluster that may have batches of its own, after all that others have; and the
    entries of these batches. Raises HistoryError if it can't be told which records they have.

    Batches that were passed over there have no entry and no records: they were lost when somebody promoted it.
    """
    _require_sound(fence, ledger)
    alone = _alone(fence, ledger, published)
    if not alone:
        return _position(fence, ledger), ()
    entries = {entry.batch: entry for entry in ledger.entries}
    present = fence.outbox_id, fence.shard, fence.incarnation
    head = ledger.head
    assert head is not None
    passed_over = {batch for batch in alone if head.witnessed < batch < head.batch} - {batch for batch, _ in head.kept}
    found = [batch for batch in alone if batch not in passed_over]
    for batch in found:
        entry = entries.get(batch)
        if entry is None or (entry.outbox_id, entry.shard, entry.incarnation) != present:
            raise HistoryError(f"nobody can tell which records batch {batch} there has. {EMPTY_IT}")
    position = replace(_position(fence, ledger).witness, batch=alone[0] - 1)
    kept = tuple(kept for kept in head.kept if kept[0] < alone[0])
    return Recovery(position, (), kept), [entries[batch] for batch in found]


def is_unfinished(fence: Fence, ledger: Ledger, published: Mapping[int, Entry], *, last: int) -> bool:
    """Whether an owed cluster has batches that nobody has completed yet: it counted when they were committed, and
    nobody has begun to harvest since then. Then it lacks nothing, and whoever leads next completes them.

    `last` is the last batch that Postgres knows of.
    """
    if ledger.head is None or ledger.head.batch < last or not _alone(fence, ledger, published):
        return False
    entries = {entry.batch: entry for entry in ledger.entries}
    batches = range(fence.witness.batch + 1, ledger.head.batch + 1)
    return all(batch in entries and entries[batch].view == fence.begun_view for batch in batches)


def skipping(before: Skipped | None, alone: Iterable[Entry], *, incarnation: int) -> Skipped | None:
    """Return the records that a cluster has alone, with those that were known `before`; None: there are none."""
    ids: set[int] = set()
    numbers: set[int] = set()
    for entry in alone:
        ids.update(entry.ids())
        numbers.update(expanded(entry.unparked))
    if before is not None and before.incarnation == incarnation:
        ids.update(expanded(before.ids))
        numbers.update(expanded(before.numbers))
    return Skipped(incarnation, runs(sorted(ids)), runs(sorted(numbers))) if ids or numbers else None


def _require_sound(fence: Fence, ledger: Ledger) -> None:
    """Raise HistoryError if a cluster has another ledger, or has lost records."""
    head, witness = ledger.head, fence.witness
    require_no_rival(fence, ledger)
    if witness.topic_id not in (None, ledger.topic_id):
        raise HistoryError(f"the ledger's topic was deleted and recreated. {EMPTY_IT}")
    if head is None:
        if witness.batch:
            raise HistoryError(f"the ledger is empty, but batch {witness.batch} was in it. {EMPTY_IT}")
    elif head.batch < witness.batch:
        raise HistoryError(
            f"the ledger ends with batch {head.batch}, but batch {witness.batch} was in it: the cluster has lost "
            f"records. {EMPTY_IT}"
        )


def _alone(fence: Fence, ledger: Ledger, published: Mapping[int, Entry]) -> Sequence[int]:
    """The batches of a ledger from the first one on that is not the same as elsewhere."""
    if ledger.head is None:
        return ()
    entries = {entry.batch: entry for entry in ledger.entries}
    batches = range(fence.witness.batch + 1, ledger.head.batch + 1)
    for batch in batches:
        if batch not in entries or not _are_same(entries[batch], published.get(batch)):
            return batches[batch - batches[0] :]
    return ()


def _position(fence: Fence, ledger: Ledger) -> Recovery:
    witness = replace(fence.witness, topic_id=ledger.topic_id)
    if ledger.head is None:
        return Recovery(witness, (), ())
    return Recovery(replace(witness, batch=ledger.head.batch, offset=ledger.head_offset), (), ledger.head.kept)


def require_all_kept(entries: Iterable[Entry], *, after: int, upto: int) -> None:
    """Raise HistoryError unless these are the entries of all batches after one up to another."""
    expected = range(after + 1, upto + 1)
    if missing := sorted({*expected} - {entry.batch for entry in entries}):
        raise HistoryError(f"it lacks batch {missing[0]}, which is not kept any more. {EMPTY_IT}")


def require_empty(fence: Fence, ledger: Ledger) -> None:
    """Raise HistoryError unless an owed cluster's ledger is empty, or has begun empty and was left like that: it has
    nothing but an entry without records, and Postgres does not know it.
    """
    if ledger.head is None or _has_begun_empty(fence, ledger, ledger.head):
        return
    require_no_rival(fence, ledger)
    raise HistoryError(f"the ledger there ends with batch {ledger.head.batch}, so it is not empty. {EMPTY_IT}")


def _has_begun_empty(fence: Fence, ledger: Ledger, head: Head) -> bool:
    if ledger.topic_id == fence.witness.topic_id or [batch for batch, _ in head.kept] != [head.batch]:
        return False
    entries = [entry for entry in ledger.entries if entry.batch == head.batch]
    present = fence.outbox_id, fence.shard, fence.incarnation
    return len(entries) == len(ledger.entries) == 1 and all(
        (entry.outbox_id, entry.shard, entry.incarnation) == present
        and not (entry.runs or entry.unparked or entry.parked or entry.extents)
        for entry in entries
    )


def _are_same(one: Entry, other: Entry | None) -> bool:
    return other is not None and identical(one, other)
