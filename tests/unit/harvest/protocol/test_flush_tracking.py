"""Flush tracking against a plain model: transactions that end in any order, windows, clusters, terms that are lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.values.fence import Flushed
from airflow_outbox.values.records import Snapshot

CLUSTERS = ("primary", "backup")
PAGE = 3


def snapshot(xmax: int, *in_progress: int) -> Snapshot:
    return Snapshot(min(in_progress, default=xmax), xmax, frozenset(in_progress))


def test_a_snapshot_includes_another_when_it_sees_all_that_the_other_sees() -> None:
    assert snapshot(10, 5).includes(snapshot(10, 5, 7))
    assert snapshot(12, 5, 11).includes(snapshot(10, 5))
    assert not snapshot(10, 5, 7).includes(snapshot(10, 5))
    assert not snapshot(9).includes(snapshot(10))


def test_a_watermark_never_goes_back() -> None:
    tracking = FlushTracking(Flushed(snapshot(20)))
    tracking.end_window(snapshot(10))
    assert tracking.watermark == snapshot(20)
    tracking.end_window(snapshot(30, 15))
    assert tracking.watermark == snapshot(20)
    tracking.end_window(snapshot(30, 25))
    assert tracking.watermark == snapshot(30, 25)


def test_the_counts_are_of_whole_transactions() -> None:
    """A batch that holds the end of a window, and half of what the next one begins with, is not counted yet."""
    tracking = FlushTracking(Flushed())
    for sent, window in ((4, snapshot(101)), (2, snapshot(102))):
        tracking.send(sent)
        tracking.end_window(window)
    tracking.flush(6)
    for batch, records in ((1, 2), (2, 3)):
        tracking.purge(batch, records, {"t": records})
    assert tracking.account == Flushed(snapshot(101), 0, {}, {"t": 5})
    tracking.purge(3, 1, {"t": 1})
    assert tracking.account == Flushed(snapshot(102), 3, {"t": 6}, {})


class Shard(RuleBasedStateMachine):
    """Writers, and a term that reads, sends, flushes and purges; and beside it what a reader of the rules expects."""

    @initialize()
    def begin(self) -> None:
        self.next_id = 100
        self.open: set[int] = set()
        self.records: dict[int, int] = {}  # of the transactions that have committed
        self.gone: Counter[int] = Counter()  # records purged, by transaction
        self.out: dict[str, Counter[int]] = {cluster: Counter() for cluster in CLUSTERS}
        self.counted: Counter[str] = Counter()
        self.stored = Flushed()
        self.claimed: Snapshot | None = None
        self.batches: list[list[int]] = [[]]  # each record by its transaction; number 0 never was
        self._begin_term()

    def _begin_term(self) -> None:
        self.tracking = FlushTracking(self.stored, batch=len(self.batches) - 1, clusters=CLUSTERS)
        self.after: Snapshot | None = None
        self.within: Snapshot | None = None
        self.unread: list[int] = []  # the present window's records, each by its transaction
        self.sent: list[int] = []
        self.flushed = dict.fromkeys(CLUSTERS, 0)
        self.purged = 0

    @rule(records=st.integers(0, 8), commits=st.booleans(), stays_open=st.booleans())
    def write(self, records: int, commits: bool, stays_open: bool) -> None:
        transaction_id, self.next_id = self.next_id, self.next_id + 1
        self.open.add(transaction_id)
        if not stays_open:
            self._end(transaction_id, records if commits else None)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), records=st.integers(1, 8))
    def end(self, data: st.DataObject, records: int) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.open))), records)

    def _end(self, transaction_id: int, records: int | None) -> None:
        self.open.remove(transaction_id)
        if records is not None:
            self.records[transaction_id] = records

    @rule()
    def read(self) -> None:
        """A page, of a new window or of the present one."""
        if self.within is None:
            self.within = snapshot(self.next_id, *self.open)
            for transaction_id, count in self.records.items():
                if self.after is None or not self.after.sees(transaction_id):
                    self.unread += [transaction_id] * (count - self.gone[transaction_id])
        page, self.unread = self.unread[:PAGE], self.unread[PAGE:]
        self.sent += page
        self.tracking.send(len(page))
        if not self.unread:
            self.after, self.within = self.within, None
            self.tracking.end_window(self.after)

    @rule(records=st.integers(1, 10), cluster=st.sampled_from(CLUSTERS))
    def flush(self, records: int, cluster: str) -> None:
        done = self.flushed[cluster]
        batch = self.sent[done : done + records]
        self.flushed[cluster] += len(batch)
        self.out[cluster].update(batch)
        self.tracking.flush(len(batch), cluster)

    @rule(records=st.integers(1, 10))
    def purge(self, records: int) -> None:
        batch = self.sent[self.purged : min(self.purged + records, *self.flushed.values())]
        self.purged += len(batch)
        self.gone.update(batch)
        topics = Counter(f"t{transaction_id % 2}" for transaction_id in batch)
        self.counted.update(topics)
        self.tracking.purge(len(self.batches), len(batch), topics)
        self.batches.append(batch)

    @rule()
    def store(self) -> None:
        self.stored = self.tracking.account

    @rule()
    def lose_the_term(self) -> None:
        """The next one completes what is committed everywhere: it is purged and counted."""
        for cluster in CLUSTERS:
            self.out[cluster] = Counter(self.gone)
        left = self.sent[self.purged : min(self.flushed.values())]
        self.gone.update(left)
        self.counted.update(f"t{transaction_id % 2}" for transaction_id in left)
        for cluster in CLUSTERS:
            self.out[cluster].update(left)
        uncovered = Counter(self.counted)
        uncovered.subtract(self.stored.topics)
        self.batches.append(left)
        self.stored = replace(self.stored, uncovered=dict(uncovered))
        self.claimed = self.stored.watermark
        self._begin_term()

    @invariant()
    def what_a_watermark_sees_is_out(self) -> None:
        for watermark in (self.tracking.watermark, self.tracking.account.watermark, self.stored.watermark):
            for transaction_id in range(100, self.next_id) if watermark is not None else ():
                if watermark.sees(transaction_id):
                    assert transaction_id not in self.open
                    count = self.records.get(transaction_id, 0)
                    assert all(out[transaction_id] == count for out in self.out.values())

    @invariant()
    def it_never_goes_back(self) -> None:
        watermark = self.tracking.watermark
        if self.claimed is not None:
            assert watermark is not None
            assert watermark.includes(self.claimed)
        self.claimed = watermark
        if (settled := self.tracking.account.watermark) is not None:
            assert watermark is not None
            assert watermark.includes(settled)

    @invariant()
    def it_is_as_new_as_can_be(self) -> None:
        least = min(self.flushed.values())
        assert (self.tracking.last_sent, self.tracking.last_flushed) == (len(self.sent), least)
        if self.after is not None and self.within is None and least == len(self.sent):
            assert self.tracking.watermark == self.after
            if self.purged == len(self.sent):
                assert self.tracking.account.watermark == self.after
                assert not self.tracking.account.uncovered

    @invariant()
    def what_is_stored_is_purged(self) -> None:
        settled = self.tracking.account.watermark
        if settled is not None:
            assert all(self.gone[number] == count for number, count in self.records.items() if settled.sees(number))

    @invariant()
    def the_counts_are_of_what_is_purged(self) -> None:
        account = self.tracking.account
        assert Counter(account.topics) + Counter(account.uncovered) == self.counted
        covered = Counter(number for batch in self.batches[: account.batch + 1] for number in batch)
        assert account.topics == Counter(f"t{number % 2}" for number in covered.elements())
        assert all(covered[number] == self.records[number] for number in covered), "half a transaction is counted"


TestShard = Shard.TestCase
