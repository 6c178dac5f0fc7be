"""Adopting: the differences, the batches to purge where nothing was lost, and where the next leader goes on."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from airflow_outbox.errors import ConfigurationError, HistoryError, PostgresError
from airflow_outbox.harvest.protocol.adoption import adopting
from airflow_outbox.harvest.protocol.ledger import Entry, Head, Ledger
from airflow_outbox.harvest.protocol.recovery import of_present_records, recover, require_history, require_page
from airflow_outbox.values.fence import DatabaseIdentity, Fence, LedgerPosition, OperatorRequest
from airflow_outbox.values.pages import Page
from airflow_outbox.values.records import Snapshot

OUTBOX, OTHER, VIEW = UUID(int=1), UUID(int=9), UUID(int=2)
HISTORY = DatabaseIdentity(system_identifier=1, timeline=1, table_oid=1, database_oid=1)
FENCE = Fence(
    request=OperatorRequest(),
    outbox_id=OUTBOX,
    incarnation=2,
    delivery="exactly_once",
    transactional_ids=("x",),
    recorded=HISTORY,
    present=replace(HISTORY, timeline=2),
    witness=LedgerPosition("T", batch=2, offset=40, highest_id=90),
    last_drawn=200,
    beats=8,
    next_transaction_id=20,
    newest_transaction_id=15,
)
HEAD = Head(OUTBOX, 2, VIEW, batch=3, witnessed=2, highest_id=100, beats=7)


def entry(batch: int, incarnation: int, outbox_id: UUID | None = OUTBOX) -> Entry:
    runs = ((batch * 10, batch * 10 + 9),)
    return Entry(batch, VIEW, incarnation, Snapshot(5, 9), runs, (), outbox_id=outbox_id, shard=0)


def test_only_entries_of_the_present_incarnation_are_purged() -> None:
    entries = (entry(2, 2), entry(3, 2), entry(4, 1), entry(5, 2, OTHER), entry(6, 2, None))
    plan = adopting(FENCE, Ledger("T", 50, HEAD, 45, entries), [])
    assert [each.batch for each in plan.unpurged] == [3, 6]
    assert plan.witness == LedgerPosition("T", 3, 45, 100)
    assert "timeline 2" in plan.differences[0]


@pytest.mark.parametrize(("timeline", "last"), [(1, 2), (2, 1000), (3, 2000)])
def test_an_incarnation_that_a_restore_has_undone_is_not_used_again(timeline: int, last: int) -> None:
    """Its tickets would count for other records. The ledger does not know it while nothing is published in it."""
    fence = replace(FENCE, present=replace(HISTORY, timeline=timeline))
    assert adopting(fence, Ledger("T", 50, HEAD, 45, (entry(2, 2),)), []).last_incarnation == last


def test_entries_from_before_an_adoption_that_published_nothing_yet_are_not_purged() -> None:
    """The batches began again behind something foreign, so that older ones have higher numbers; the head is theirs."""
    before = Ledger("T", 60, replace(HEAD, incarnation=1, batch=7), 45, (entry(7, 1),))
    fence = replace(FENCE, witness=LedgerPosition("T", batch=0, offset=60, highest_id=100))
    assert adopting(fence, before, [(50, "not written by us")]).unpurged == []


SET_BACK = replace(FENCE, present=HISTORY, begun_view=VIEW, last_drawn=1, halted="it was set back")
LEDGER = Ledger("T", 50, HEAD, 45, (entry(2, 2), entry(3, 2)))


def test_what_is_published_is_purged_where_only_ids_were_set_back() -> None:
    assert adopting(SET_BACK, LEDGER, []).certain == [entry(3, 2)]


@pytest.mark.parametrize(
    "change",
    [
        {"present": replace(HISTORY, system_identifier=2)},
        {"present": replace(HISTORY, timeline=2)},
        {"present": replace(HISTORY, table_oid=2)},
        {"present": replace(HISTORY, database_oid=2)},
        {"beats": 6},
        {"witness": LedgerPosition("T", batch=1, offset=40, highest_id=90)},
        {"incarnation": 1},
        {"incarnation": 3},
        {"begun_view": UUID(int=3)},
        {"begun_view": None},
        {"outbox_id": None},
        {"next_transaction_id": 8},
    ],
    ids=str,
)
def test_nothing_is_purged_beyond_doubt_where_anything_else_differs(change: dict[str, object]) -> None:
    fence = replace(SET_BACK, **change)  # type: ignore[arg-type]
    assert list(of_present_records(fence, LEDGER)) == []


def page(*, table_oid: int = 1, file_number: int = 1) -> Page:
    return Page([], Snapshot(9, 9), True, 0, 0, table_oid=table_oid, file_number=file_number)


def test_a_page_of_another_table_is_not_published() -> None:
    fence = replace(FENCE, present=HISTORY)
    assert require_page(fence, page(file_number=7), file_number=None) == 7
    with pytest.raises(HistoryError, match="dropped and recreated"):
        require_page(fence, page(table_oid=2), file_number=1)


def test_a_page_of_a_table_that_was_truncated_ends_the_term() -> None:
    fence = replace(FENCE, present=HISTORY)
    with pytest.raises(PostgresError, match="truncated or rewritten"):
        require_page(fence, page(file_number=8), file_number=7)


def test_a_ledger_with_anothers_head_can_not_be_adopted() -> None:
    ledger = Ledger("T", 50, replace(HEAD, outbox_id=OTHER), 45, ())
    for fence in (FENCE, replace(FENCE, witness=LedgerPosition()), replace(FENCE, halted="somebody has looked")):
        with pytest.raises(
            ConfigurationError, match=r"belongs to outbox .*09.*Remove ledger_topic .* delete the ledger's topic"
        ):
            adopting(fence, ledger, [])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"halted": "somebody has looked"}, "somebody has looked"),
        ({"present": replace(HISTORY, system_identifier=2)}, "another database cluster"),
        ({"present": replace(HISTORY, timeline=2)}, "timeline 2"),
        ({"present": replace(HISTORY, table_oid=2)}, "dropped and recreated"),
        ({"present": replace(HISTORY, database_oid=2)}, "a copy in the same cluster"),
        ({"last_drawn": 89}, "was set back"),
        ({"newest_transaction_id": 20}, "has not begun yet"),
    ],
)
def test_what_postgres_alone_can_tell_is_told_without_a_ledger(change: dict[str, object], named: str) -> None:
    fence = replace(FENCE, present=HISTORY)
    require_history(fence)
    with pytest.raises(HistoryError, match=named):
        require_history(replace(fence, **change))  # type: ignore[arg-type]


def test_an_entry_and_a_history_of_the_release_before_are_known_again() -> None:
    """They say neither whose the entry is, nor which database's history it is; the fence row names no view."""
    old = replace(entry(3, 2, None), shard=None)
    key, value = old.records()[0]
    assert value is not None
    assert "outbox_id" not in value
    told = value.replace('"format":2', '"format":1')
    head_key, head_value = HEAD.record()
    records = [(44, key, told), (45, head_key, str(head_value).replace('"format":2', '"format":1'))]
    ledger = Ledger.read(topic_id="T", end=50, records=records)
    assert ledger.entries == (old,)
    fence = replace(FENCE, recorded=replace(HISTORY, database_oid=None), present=HISTORY)
    assert recover(fence, ledger).unpurged == (old,)
    assert recover(replace(fence, begun_view=VIEW), ledger).unpurged == (old,)
    with pytest.raises(HistoryError, match="published by view"):
        recover(replace(fence, begun_view=UUID(int=3)), ledger)
