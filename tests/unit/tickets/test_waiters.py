"""A listener believes nothing of another connection, of another server, or of another history."""

from __future__ import annotations

from uuid import UUID

import pytest

from airflow_outbox.errors import TicketRefusedError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import COMMITTED, LastWord, Outcome, TicketState, TicketStatus, judge
from airflow_outbox.tickets.waiters import Awaited, Waiter
from airflow_outbox.tickets.watermarks import Watermarks, proof_of
from airflow_outbox.values.records import Ticket

OUTBOX_ID = UUID(int=1)
SECRET = UUID(int=2)


def announcement(text: str, secret: UUID = SECRET) -> str:
    return f"{text} {proof_of(text, secret)}"


def stored(watermark: str | None, *, incarnation: int = 1, doubt: str | None = None, server: str = "one") -> Watermarks:
    return Watermarks.read([(OUTBOX_ID, incarnation, "exactly_once", watermark, doubt, server, SECRET, 0, 1, False)])


def ticket(transaction_id: int, incarnation: int = 1) -> Ticket:
    return Ticket(OUTBOX_ID, incarnation, transaction_id)


@pytest.fixture
def awaited() -> Awaited:
    """It has looked a second ago, and heard of more since."""
    awaited = Awaited(OutboxName.parse("outbox"), report_at=0)
    awaited.looked_at = 99.0
    awaited.learn(stored("1400:1400:"))
    awaited.hear(announcement("0 1 2000:2000:"), 100.0)
    return awaited


def verdict(awaited: Awaited, waiter: Waiter, outcome: str = "committed") -> TicketStatus | Exception:
    outcomes = {waiter.ticket.transaction_id: Outcome(outcome, None, None)}
    return awaited.judge([waiter], outcomes)[waiter]


def state(awaited: Awaited, waiter: Waiter) -> TicketState:
    status = verdict(awaited, waiter)
    assert isinstance(status, TicketStatus)
    return status.state


def test_an_announcement_is_believed_on_the_connection_that_it_came_on(awaited: Awaited) -> None:
    waiter = Waiter(ticket(1600), has_committed=True)
    assert state(awaited, waiter) is TicketState.PUBLISHED
    awaited.learn(stored("1500:1500:"))  # what is stored is older
    assert state(awaited, waiter) is TicketState.PUBLISHED


@pytest.mark.parametrize(
    "forged", ["0 1 3000:3000:", announcement("0 1 3000:3000:", UUID(int=3)), "0 1 3000:3000: " + 64 * "ü", ""]
)
def test_an_announcement_without_proof_is_not_believed(awaited: Awaited, forged: str) -> None:
    awaited.hear(forged, 105.0)
    assert awaited.heard_at == 100.0
    assert state(awaited, Waiter(ticket(2600), has_committed=True)) is TicketState.WAITING


def test_an_announcement_does_not_prove_another(awaited: Awaited) -> None:
    proof = announcement("0 1 2000:2000:").split(" ")[-1]
    awaited.hear(f"0 1 3000:3000: {proof}", 105.0)
    assert state(awaited, Waiter(ticket(2600), has_committed=True)) is TicketState.WAITING


def test_on_a_new_connection_all_is_asked_for_again(awaited: Awaited) -> None:
    waiter = Waiter(ticket(1600), has_committed=True)
    awaited.waiters[waiter] = None
    awaited.begin()
    assert awaited.is_to_look(100.0)
    assert awaited.due(100.0) == []
    awaited.learn(stored("1500:1500:"))
    assert not waiter.has_committed
    assert state(awaited, waiter) is TicketState.WAITING


def test_what_another_server_has_told_is_not_believed(awaited: Awaited) -> None:
    """A pooler exchanges the server behind it without a word."""
    awaited.learn(stored("1500:1500:", server="two"))
    assert state(awaited, Waiter(ticket(1600), has_committed=True)) is TicketState.WAITING


def test_a_doubt_is_told_to_all_and_its_end_too(awaited: Awaited) -> None:
    waiter = Waiter(ticket(2600), has_committed=True, is_new=False)
    awaited.waiters[waiter] = None
    awaited.greeted_at = 100.0
    assert awaited.due(100.0) == []
    awaited.learn(stored(None, doubt="restored"))
    assert awaited.due(100.0) == [waiter]
    status = verdict(awaited, waiter)
    assert isinstance(status, TicketStatus)
    assert (status.state, status.reasons, status.is_final) == (TicketState.HALTED, ("restored",), False)
    assert "restored" in str(status)
    waiter.tell(status)
    assert awaited.due(100.1) == []
    awaited.learn(stored("2700:2700:"))
    assert awaited.due(100.2) == [waiter]
    assert state(awaited, waiter) is TicketState.PUBLISHED


def test_in_doubt_an_announcement_is_a_reason_to_look(awaited: Awaited) -> None:
    awaited.learn(stored(None, doubt="halted"))
    awaited.hear(announcement("0 1 3000:3000:"), 100.0)
    assert awaited.is_to_look(100.0)
    assert state(awaited, Waiter(ticket(1600), has_committed=True)) is TicketState.HALTED


def test_in_doubt_nothing_is_said_of_what_became_of_a_transaction(awaited: Awaited) -> None:
    awaited.learn(stored(None, doubt="restored"))
    status = verdict(awaited, Waiter(ticket(1600), has_committed=False), outcome="aborted")
    assert isinstance(status, TicketStatus)
    assert status.state is TicketState.HALTED


@pytest.mark.parametrize("incarnation", [1, 3])
def test_a_ticket_of_another_incarnation_is_refused_only_after_a_look(awaited: Awaited, incarnation: int) -> None:
    awaited.learn(stored("1500:1500:", incarnation=2))
    waiter = Waiter(ticket(1600, incarnation=incarnation), has_committed=False, came_at=100.0)
    awaited.waiters[waiter] = None
    assert awaited.due(100.0) == []
    assert awaited.answerable() == []
    assert awaited.is_to_look(100.0)
    awaited.looked_at = 100.1
    assert awaited.due(100.2) == [waiter]
    assert isinstance(verdict(awaited, waiter), TicketRefusedError)
    awaited.learn(stored("1500:1500:", incarnation=incarnation))
    assert state(awaited, waiter) is TicketState.WAITING


def test_a_ticket_of_a_later_incarnation_is_not_refused_in_doubt() -> None:
    """The database may have been restored to before an adoption."""
    doubtful = stored(None, doubt="restored")
    assert judge(ticket(1600, incarnation=2), COMMITTED, doubtful).state is TicketState.HALTED
    with pytest.raises(TicketRefusedError):
        judge(ticket(1600, incarnation=0), COMMITTED, doubtful)


@pytest.mark.parametrize(
    ("holds", "outcome", "confirms"),
    [(True, "committed", True), (True, None, True), (True, "aborted", False), (False, "committed", False)],
)
def test_postgres_has_the_last_word(awaited: Awaited, holds: bool, outcome: str | None, confirms: bool) -> None:
    words = LastWord.read([(1600, holds, outcome, 0, 0, [], ["primary"])])
    assert words[1600].confirms == confirms
    waiter = Waiter(ticket(1600), has_committed=True)
    awaited.waiters[waiter] = None
    awaited.distrust({1600})
    assert (awaited.is_to_look(100.0), waiter.has_committed) == (True, False)
    assert state(awaited, waiter) is TicketState.WAITING
