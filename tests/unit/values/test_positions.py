"""What operators are told of positions: by the verdict's notes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_outbox.values.judging import judge
from airflow_outbox.values.positions import PositionsReport
from airflow_outbox.values.verdict import Facts, State, Thresholds, Trouble, TroubleKind

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BOUNDS = Thresholds()


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


LED = Facts(now=NOW, member="a:1", heard_at=ago(0.5), took_over_at=ago(3600), published_at=ago(1))


def report(member: str = "a:1", *, told: float = 1, beside_harvest: bool = True, said: str = "") -> PositionsReport:
    return PositionsReport(
        member=member, told_at=ago(told), beside_harvest=beside_harvest, said=(said,) if said else ()
    )


TWO_HOMES = "positions of app: left alone"
SILENT = "positions have not been replicated for 3 min: {} is silent. Look at that process, or start"


@pytest.mark.parametrize(
    ("reports", "notes"),
    [
        pytest.param([report()], [], id="all follow"),
        pytest.param([report(said=TWO_HOMES), report("b:2", said=TWO_HOMES)], [TWO_HOMES], id="two say the same"),
        pytest.param([report(told=180, said=TWO_HOMES)], [SILENT.format("a:1")], id="the leader's is silent"),
        pytest.param([report("b:2", told=180)], [], id="it went with its leader"),
        pytest.param([report("b:2", told=180, beside_harvest=False)], [SILENT.format("b:2")], id="alone, and silent"),
        pytest.param([report("b:2", told=180, beside_harvest=False), report()], [], id="another one goes on"),
        pytest.param([replace(report(told=180), seconds=50.0)], [], id="looks take long"),
    ],
)
def test_positions_are_notes(reports: list[PositionsReport], notes: list[str]) -> None:
    verdict = judge(replace(LED, positions=tuple(reports)), BOUNDS)
    assert verdict.state is State.HEALTHY
    assert len(verdict.notes) == len(notes)
    assert all(found.startswith(note) for found, note in zip(verdict.notes, notes, strict=True))


def test_batches_without_extents_are_a_note_also_of_the_leader() -> None:
    trouble = Trouble("a:1", TroubleKind.EXTENTS, "no topic. Run `init`", ago(5), ago(1))
    facts = replace(LED, published_at=ago(9), troubles=(trouble,))
    verdict = judge(facts, BOUNDS)
    assert verdict.state is State.HEALTHY
    assert verdict.notes == ("a:1: no topic. Run `init`",)
    assert judge(replace(facts, heard_at=ago(60)), BOUNDS).state is State.NO_LEADER
