"""The ledger: entries survive being written and read, in chunks too; recovery trusts nothing that does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.errors import HistoryError, SchemaVersionError
from airflow_outbox.harvest.protocol import ledger
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Head, Ledger, LedgerRecord, Parked, runs
from airflow_outbox.harvest.protocol.recovery import differences, recover, require_no_rival
from airflow_outbox.values.fence import DatabaseIdentity, Fence, LedgerPosition, OperatorRequest
from airflow_outbox.values.records import Snapshot

OUTBOX, VIEW = UUID(int=1), UUID(int=2)


def entry(batch: int, ids: Iterable[int] = (1, 2, 3), *, incarnation: int = 1) -> Entry:
    extents = (Extent("t", 0, 10, 12, 3),)
    snapshot = Snapshot(5, 9, frozenset({5}))
    return Entry(batch, VIEW, incarnation, snapshot, runs(list(ids)), extents, outbox_id=OUTBOX, shard=0)


def head(batch: int, **changes: int) -> Head:
    values = Head(OUTBOX, 1, VIEW, batch, witnessed=0, highest_id=100, beats=7)
    return replace(values, **changes)  # type: ignore[arg-type]


def read(*records: LedgerRecord, end: int = 50, unread: list[tuple[int, str]] | None = None) -> Ledger:
    numbered = [(offset, key, value) for offset, (key, value) in enumerate(records, 40)]
    return Ledger.read(topic_id="T", end=end, records=numbered, unread=unread)


@given(st.lists(st.integers(-5, 200), unique=True))
def test_runs_are_exact_and_keep_the_order(ids: list[int]) -> None:
    assert [number for first, last in runs(ids) for number in range(first, last + 1)] == ids


PARKED = (
    Parked("headers", "none", ((2, 2), (5, 6), (8, 8))),
    Parked("refused", "ü" * 50, ((10, 12), (14, 14))),
    Parked(None, None, ((13, 13), (20, 30))),
)
PLACES = tuple(Extent("t" * (place + 1), place, 10, 12, 3) for place in range(5))


@pytest.mark.parametrize("chunk", [1, 100, 400, 700_000])
def test_an_entry_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(ledger, "_CHUNK_BYTES", chunk)
    written = replace(entry(4, [1, 3, 4, 9, 7]), parked=PARKED, unparked=((40, 40), (42, 49)), extents=PLACES)
    assert (len(written.records()) > 1) is (chunk < 1000)
    found = read(*written.records(), head(4, witnessed=3).record())
    assert found.entries == (written,)
    assert found.head == head(4, witnessed=3)
    assert (found.topic_id, found.end) == ("T", 50)


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": tuple((-(2**63) + 2 * n, -(2**63) + 2 * n) for n in range(60_000))},
        {"parked": tuple(Parked("unknown_topic", f"ü{n}" * 60, ((n, n),)) for n in range(5_000))},
        {"extents": tuple(Extent("t" * 249, 2**31 - n, 2**63 - 1, 2**63 - 1, 20_000) for n in range(5_000))},
    ],
    ids=["scattered ids", "many reasons", "many partitions"],
)
def test_no_record_of_an_entry_is_larger_than_the_client_takes(changes: dict[str, Any]) -> None:
    records = replace(entry(2**40), **changes).records()
    sizes = [len(value.encode()) for _, value in records if value is not None]
    assert max(sizes) < 720_000
    assert len(records) < 3 + sum(sizes) // 350_000


def test_an_entry_that_was_deleted_is_gone() -> None:
    found = read(*entry(1).records(), *entry(2).records(), ("batch/1/0", None), head(2).record())
    assert [each.batch for each in found.entries] == [2]


def test_an_entry_with_a_missing_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_CHUNK_BYTES", 1)
    with pytest.raises(HistoryError, match="no release has written"):
        read(*entry(1, [1, 3, 5]).records()[:2])


def test_what_a_later_release_has_written_is_left_to_it() -> None:
    with pytest.raises(SchemaVersionError, match="newer airflow-outbox"):
        read(("head", '{"format": 99}'))


def test_what_is_none_of_ours_is_refused() -> None:
    with pytest.raises(HistoryError, match="not written by airflow-outbox"):
        read(("head", "not json"))


FOREIGN = [
    ("theirs", "not json"),
    ("theirs", "[]"),
    ("theirs", '{"format": 1}'),
    ("batch/2/0", '{"format":1,"batch":2}'),
]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_who_adopts_reads_on_behind_what_is_none_of_ours(foreign: LedgerRecord) -> None:
    records = [*entry(1).records(), foreign, *entry(3).records(), head(3).record()]
    with pytest.raises(HistoryError):
        read(*records)
    unread: list[tuple[int, str]] = []
    found = read(*records, unread=unread)
    assert [each.batch for each in found.entries] == [1, 3]
    assert found.head == head(3)
    assert [offset for offset, _ in unread] == [41]
    unread.clear()
    assert read(*records[:2], ("head", "not json"), unread=unread).head is None
    assert [offset for offset, _ in unread] == [42, 41]


HISTORY = DatabaseIdentity(system_identifier=1, timeline=1, table_oid=1, database_oid=1)
FENCE = Fence(
    request=OperatorRequest(),
    outbox_id=OUTBOX,
    incarnation=1,
    delivery="exactly_once",
    transactional_ids=("x",),
    recorded=HISTORY,
    present=HISTORY,
    witness=LedgerPosition("T", batch=2, offset=40, highest_id=90),
    last_drawn=200,
    beats=8,
    next_transaction_id=20,
    newest_transaction_id=15,
    begun_view=VIEW,
)


def test_recovery_completes_what_is_committed_and_not_witnessed() -> None:
    found = recover(FENCE, read(*entry(2).records(), *entry(3).records(), *entry(4).records(), head(4).record()))
    assert [each.batch for each in found.unpurged] == [3, 4]
    assert found.witness == LedgerPosition("T", batch=4, offset=43, highest_id=100)


def test_a_first_leader_finds_nothing_to_complete() -> None:
    found = recover(replace(FENCE, witness=LedgerPosition()), read(end=0))
    assert found.unpurged == ()
    assert found.witness == LedgerPosition("T")


def test_after_an_adoption_older_entries_purge_nothing() -> None:
    adopted = replace(FENCE, incarnation=2, witness=LedgerPosition("T", 4, 43, 100))
    assert recover(adopted, read(*entry(4).records(), head(4).record())).unpurged == ()


def test_an_entry_that_a_cut_has_left_behind_its_head_purges_nothing() -> None:
    found = recover(FENCE, read(*entry(3).records(), head(3).record(), *entry(4, incarnation=0).records()))
    assert [each.batch for each in found.unpurged] == [3]


WHOLE = (*entry(3).records(), head(3).record())


@pytest.mark.parametrize("beats", [0, 8])
def test_a_glimpse_says_what_the_whole_ledger_says_of_a_database_from_before_it(beats: int) -> None:
    restored = replace(FENCE, witness=LedgerPosition(), beats=beats)
    for look in (require_no_rival, recover):
        with pytest.raises(HistoryError, match="before this database had one"):
            look(restored, read(*WHOLE))


@pytest.mark.parametrize(
    ("fence", "records", "named"),
    [
        (replace(FENCE, present=replace(HISTORY, system_identifier=2)), WHOLE, "another database cluster"),
        (replace(FENCE, present=replace(HISTORY, timeline=2)), WHOLE, "timeline 2"),
        (replace(FENCE, present=replace(HISTORY, table_oid=2)), WHOLE, "dropped and recreated"),
        (
            replace(FENCE, present=replace(HISTORY, database_oid=2)),
            WHOLE,
            "the database with oid 2, but 1 was harvested",
        ),
        (replace(FENCE, begun_view=UUID(int=3)), WHOLE, "published by view .*02, which this database does not know"),
        (replace(FENCE, outbox_id=UUID(int=9), witness=LedgerPosition()), WHOLE, "belongs to outbox"),
        (
            FENCE,
            (*replace(entry(3), outbox_id=UUID(int=9)).records(), head(3).record()),
            "belongs to outbox .*09, shard 0",
        ),
        (FENCE, (*replace(entry(3), shard=1).records(), head(3).record()), "shard 1"),
        (replace(FENCE, last_drawn=89), WHOLE, "the sequence of the ids is at 89"),
        (replace(FENCE, last_drawn=95), WHOLE, "the sequence of the ids is at 95"),
        (replace(FENCE, newest_transaction_id=20), WHOLE, "has not begun yet"),
        (replace(FENCE, next_transaction_id=8, newest_transaction_id=7), WHOLE, "in a later state"),
        (replace(FENCE, beats=6), WHOLE, "knows more of the leaders"),
        (replace(FENCE, witness=LedgerPosition()), WHOLE, "before this database had one"),
        (replace(FENCE, witness=replace(FENCE.witness, topic_id="U")), WHOLE, "topic was deleted and recreated"),
        (replace(FENCE, outbox_id=UUID(int=9)), WHOLE, "belongs to outbox"),
        (replace(FENCE, halted="somebody has looked"), WHOLE, "somebody has looked"),
        (FENCE, (), "the ledger is empty"),
        (FENCE, (head(1).record(),), "ends with batch 1"),
        (FENCE, (*entry(4).records(), head(4).record()), "no entry for batch 3"),
        (FENCE, (*entry(3).records(), head(3, witnessed=3).record()), "restored to an earlier time"),
        (FENCE, (*entry(3).records(), head(3, incarnation=2).record()), "incarnation 2"),
        (FENCE, (*entry(3, incarnation=0).records(), head(3).record()), "batch 3 comes from incarnation 0"),
        (replace(FENCE, incarnation=2), WHOLE, "after the ledger had been adopted"),
    ],
)
def test_another_history_is_refused(fence: Fence, records: tuple[LedgerRecord, ...], named: str) -> None:
    assert list(differences(FENCE, read(*WHOLE))) == []
    with pytest.raises(HistoryError, match=named):
        recover(fence, read(*records))
