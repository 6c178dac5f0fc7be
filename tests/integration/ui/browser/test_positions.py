"""The page's part about consumer groups whose positions follow to another cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from playwright.sync_api import expect
from psycopg.types.json import Jsonb
from support.browser import Visit

from airflow_outbox.values.positions import GroupState

from .conftest import ONE, Demo
from .test_looking import PHONE, serious

WHY = "left alone, because somebody else has committed on primary and west"
REPORT = {"groups": {"following": 230, "left_alone": 1}, "behind": {"west": 1234}, "commits": 4, "failures": 2}


def group(name: str, state: GroupState, **told: Any) -> dict[str, Any]:
    return {"group": name, "state": state, "home": None, "behind": {}, "synced_at": None, "why": "in step", **told}


@pytest.fixture
def told(demo: Demo) -> Iterator[None]:
    """A replicator has told of two groups of many."""
    groups = [
        group("audit", GroupState.LEFT_ALONE, why=WHY),
        group(
            "orders-app",
            GroupState.FOLLOWING,
            home="primary",
            behind={"west": 1234},
            synced_at="2026-01-02T03:04:05+00:00",
        ),
    ]
    with psycopg.connect(demo.outbox.database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outbox_positions (member, report, groups) VALUES ('east:7', %s, %s)",
            [Jsonb({**REPORT, "seconds": 0.1, "said": [f"positions of audit: {WHY}"]}), Jsonb(groups)],
        )
        yield
        connection.execute("DELETE FROM outbox_positions")


def test_each_group_has_its_home_lag_and_last_sync_or_why_it_is_left_alone(
    visit: Callable[..., Visit], told: None
) -> None:
    visitor = visit("viewer", viewport=PHONE)
    frame = visitor.open_framed(ONE)
    section = frame.get_by_role("region", name="Positions of consumer groups")
    lines = section.locator("tbody tr")
    expect(lines).to_have_count(2)
    for words in ("audit", "left alone", WHY.removeprefix("left alone, ")):
        expect(lines.nth(0)).to_contain_text(words)
    for words in ("orders-app", "following", "primary", "west: 1,234", "2026-01-02 03:04:05 UTC"):
        expect(lines.nth(1)).to_contain_text(words)
    expect(frame.get_by_text("231 groups, as east:7 saw them")).to_contain_text("2 failures since it was started")
    expect(frame.get_by_text("and 229 more")).to_be_visible()
    widths = frame.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1], "the page has to be scrolled sideways"
    assert serious(frame) == []
    assert visitor.problems == []
