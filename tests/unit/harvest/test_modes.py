"""Which terms a view harvests in."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from unit.harvest.protocol.test_ledger import FENCE

from airflow_outbox.harvest.at_least_once import RowMarksTerm
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.modes import Modes


@pytest.mark.parametrize(
    ("before", "holds_marks", "terms"),
    [
        (None, True, [RowMarksTerm, ExactlyOnceTerm]),  # as a table that was goharvest's
        ("at_least_once", True, [RowMarksTerm, ExactlyOnceTerm]),
        ("at_least_once", False, [ExactlyOnceTerm]),
        ("exactly_once", True, [ExactlyOnceTerm]),
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
        new_transactional_log=AsyncMock(),
        limits=Limits(),
        report=lambda *_, **__: None,
    )
    async with aclosing(modes.terms(UUID(int=1), replace(FENCE, delivery=before), Counter())) as found:
        assert [type(term) async for term in found] == terms
