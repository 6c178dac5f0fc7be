"""A term's memory of the ledger, from a batch's commit until it is settled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.harvest.protocol.test_ledger import FENCE, VIEW, entry

from airflow_outbox.errors import HistoryError
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.recovery import Recovery

WITNESS = replace(FENCE.witness, batch=3, offset=30, highest_id=20)


def commit(state: LedgerState, batch: int, *, offset: int, highest_id: int) -> None:
    state.records(entry(batch), highest_id=highest_id)
    state.committed(entry(batch), offset=offset, highest_id=highest_id)


def test_batches_are_settled_in_the_order_of_their_commits() -> None:
    state = LedgerState(VIEW, FENCE, Recovery(WITNESS, (), ()))
    commit(state, 4, offset=40, highest_id=22)
    commit(state, 5, offset=50, highest_id=21)
    assert state.settled == state.witnessed == WITNESS
    assert state.published == replace(WITNESS, batch=5, offset=50, highest_id=22)
    state.settle()
    assert state.settled == replace(WITNESS, batch=4, offset=40, highest_id=22)
    state.settle()
    assert state.settled == state.published


def test_an_offset_that_falls_shows_another_ledger() -> None:
    state = LedgerState(VIEW, FENCE, Recovery(WITNESS, (), ()))
    commit(state, 4, offset=30, highest_id=22)
    with pytest.raises(HistoryError, match="deleted and recreated"):
        state.settle()
