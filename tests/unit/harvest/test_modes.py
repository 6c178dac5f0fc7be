"""Which terms a view harvests in."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from unit.harvest.protocol.test_ledger import FENCE

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.at_least_once import RowMarksTerm
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.protocol.parking import ParkedLanes
from airflow_outbox.harvest.protocol.recovery import Recovery
from airflow_outbox.harvest.protocol.transaction_headers import StampNames
from airflow_outbox.harvest.recovery import Recovered, RecoveryTerm
from airflow_outbox.values.fence import PRIMARY, Flushed, LedgerRow
from airflow_outbox.values.pages import PageSnapshot

RECOVERED = Recovered(FENCE, [Recovery(FENCE.witness, (), ())], Flushed(), ParkedLanes({}, ()), (), PageSnapshot())


@pytest.mark.parametrize(
    ("before", "holds_marks", "terms"),
    [
        (None, True, [RowMarksTerm, RecoveryTerm, ExactlyOnceTerm]),  # as a table that was goharvest's
        ("at_least_once", True, [RowMarksTerm, RecoveryTerm, ExactlyOnceTerm]),
        ("at_least_once", False, [RecoveryTerm, ExactlyOnceTerm]),
        ("exactly_once", True, [RecoveryTerm, ExactlyOnceTerm]),
    ],
)
async def test_marked_records_are_drained_before_harvesting_exactly_once(
    before: str | None, holds_marks: bool, terms: list[type]
) -> None:
    table = AsyncMock()
    table.holds_marks.return_value = holds_marks
    modes = Modes(
        delivery="exactly_once",
        table=cast("Any", table),
        new_log=AsyncMock(),
        new_transactional_logs={PRIMARY: AsyncMock()},
        limits=Limits(),
        report=lambda *_, **__: None,
    )
    found: list[type] = []
    async with aclosing(modes.terms(UUID(int=1), replace(FENCE, delivery=before), Measures(float))) as yielded:
        async for term in yielded:
            found.append(type(term))
            if isinstance(term, RecoveryTerm):
                term.recovered = RECOVERED  # as if it had run
    assert found == terms


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"delivery": "at_least_once"}, "needs delivery: exactly_once"),
        ({"stamp_names": StampNames(place="place")}, "has no transaction_headers"),
    ],
)
async def test_what_would_let_clusters_differ_is_refused(settings: dict[str, Any], refusal: str) -> None:
    settings = {"delivery": "exactly_once", **settings}
    logs, report = {PRIMARY: AsyncMock()}, lambda *_, **__: None
    modes = Modes(
        table=AsyncMock(), new_log=AsyncMock(), new_transactional_logs=logs, limits=Limits(), report=report, **settings
    )
    with pytest.raises(ConfigurationError, match=refusal):
        await anext(modes.terms(UUID(int=1), replace(FENCE, backups={"b": LedgerRow()}), Measures(float)))
    logs[PRIMARY].assert_not_awaited()
