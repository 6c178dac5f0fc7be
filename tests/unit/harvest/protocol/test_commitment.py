"""Commitment over one to three logs: in whatever order the logs answer, no batch is anywhere where it may not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import MAX_UNCOMPLETED, MAX_UNCOMPLETED_SMALL, PRIMARY, Commitment
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.values.records import Snapshot

LAST = 7
"""The last batch of the terms before."""


def entry(batch: int) -> Entry:
    return Entry(batch, UUID(int=1), 1, Snapshot(1, 1), (), ())


def commitment(*, backups: int = 0, max_records: int = 100) -> Commitment:
    return Commitment(last=LAST, max_records=max_records, backups=backups)


class World:
    """Logs that do what they are told, in an order that is drawn, and a record of what has happened."""

    def __init__(self, logs: int) -> None:
        self.logs = range(logs)
        self.commitment = commitment(backups=logs - 1)
        self.happened: set[tuple[str, int, int]] = set()
        self.begun = LAST
        self.prepared = dict.fromkeys(self.logs, LAST)
        self.readable = dict.fromkeys(self.logs, LAST)
        self.completed = LAST

    def has(self, what: str, batch: int, log: int) -> bool:
        return batch <= LAST or (what, batch, log) in self.happened

    def have_all(self, what: str, batch: int) -> bool:
        return all(self.has(what, batch, log) for log in self.logs)

    def possible(self) -> list[Callable[[], None]]:
        """The steps that may happen next."""
        found: list[Callable[[], None]] = []
        for log in self.logs:
            if self.prepared[log] < self.begun:
                found.append(lambda log=log: self.prepare(log))  # type: ignore[misc]
            if self.has("committed", self.readable[log] + 1, log):
                found.append(lambda log=log: self.read(log))  # type: ignore[misc]
        for batch in range(LAST + 1, self.begun + 1):
            for log in self.commitment.due(batch):
                found.append(lambda batch=batch, log=log: self.commit(batch, log))  # type: ignore[misc]
        if self.commitment.oldest is not None and self.commitment.may_complete:
            found.append(self.complete)
        return found

    def begin(self) -> None:
        self.begun += 1
        assert self.commitment.begin() == self.begun

    def prepare(self, log: int) -> None:
        self.prepared[log] += 1
        self.happened.add(("prepared", self.prepared[log], log))
        self.commitment.prepared(log)

    def commit(self, batch: int, log: int) -> None:
        assert not self.has("committed", batch, log)
        assert self.have_all("prepared", batch)
        assert self.have_all("committed", batch - 1)
        assert log == PRIMARY or self.has("committed", batch, PRIMARY)
        self.happened.add(("committed", batch, log))
        self.commitment.committed(log, entry(batch), Batch(batch, ids=[batch]))

    def read(self, log: int) -> None:
        self.readable[log] += 1
        self.happened.add(("readable", self.readable[log], log))
        self.commitment.readable(log, self.readable[log] - LAST)

    def complete(self) -> None:
        self.completed += 1
        assert self.commitment.oldest is not None
        found, batch = self.commitment.oldest
        assert found.batch == batch.number == self.completed
        assert self.have_all("readable", self.completed)
        self.commitment.complete()
        assert self.commitment.completed == self.completed

    def check(self) -> None:
        whole = [batch for batch in range(LAST + 1, self.begun + 1) if self.have_all("committed", batch)]
        assert self.commitment.records == len(whole) - (self.completed - LAST)


@given(st.integers(1, 3), st.data())
def test_the_order_holds_whatever_comes_first(logs: int, data: Any) -> None:
    world = World(logs)
    for _ in range(data.draw(st.integers(0, 60))):
        data.draw(st.sampled_from([*world.possible(), world.begin]))()
        world.check()
    while possible := world.possible():  # nothing that was begun stays behind
        data.draw(st.sampled_from(possible))()
        world.check()
    assert world.completed == world.begun
    assert world.commitment.oldest is None


def test_a_batch_that_is_prepared_is_due_at_once_on_a_single_log() -> None:
    single = commitment()
    for batch in (8, 9):
        assert single.begin() == batch
        assert single.due(batch) == []
        single.prepared(PRIMARY)
    assert single.due(8) == [PRIMARY]
    assert single.due(9) == []
    single.committed(PRIMARY, entry(8), Batch(8))
    assert single.due(8) == []
    assert single.due(9) == [PRIMARY]


def test_backups_commit_at_once_after_the_primary() -> None:
    several = commitment(backups=2)
    several.begin()
    for log in range(3):
        assert several.due(8) == []
        several.prepared(log)
    assert several.due(8) == [PRIMARY]
    several.committed(PRIMARY, entry(8), Batch(8))
    assert several.due(8) == [1, 2]
    several.committed(2, entry(8), Batch(8))
    assert several.due(8) == [1]
    assert several.oldest is None
    several.committed(1, entry(8), Batch(8))
    assert several.oldest is not None


def test_what_breaks_the_order_is_refused() -> None:
    several = commitment(backups=1)
    with pytest.raises(AssertionError, match="not begun"):
        several.prepared(PRIMARY)
    several.begin()
    several.prepared(PRIMARY)
    with pytest.raises(AssertionError, match="not due"):
        several.committed(PRIMARY, entry(8), Batch(8))
    several.prepared(1)
    with pytest.raises(AssertionError, match="not due"):
        several.committed(1, entry(8), Batch(8))
    for log in (PRIMARY, 1):
        several.committed(log, entry(8), Batch(8))
    several.readable(PRIMARY, 1)
    with pytest.raises(AssertionError, match="not everybody can read"):
        several.complete()


@pytest.mark.parametrize(("records", "batches"), [(1, MAX_UNCOMPLETED_SMALL), (20, MAX_UNCOMPLETED)])
def test_few_batches_are_ahead_or_many_small_ones(records: int, batches: int) -> None:
    single = commitment(max_records=100)
    for batch in range(LAST + 1, LAST + batches + 1):
        assert not single.is_far_ahead
        single.begin()
        single.prepared(PRIMARY)
        single.committed(PRIMARY, entry(batch), Batch(batch, ids=list(range(records))))
    assert single.is_far_ahead
    assert single.records == records * batches
    single.readable(PRIMARY, 1)
    single.complete()
    assert not single.is_far_ahead
