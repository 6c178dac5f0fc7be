"""What a replicator tells of its looks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_outbox.positions.homes import Decision, Side
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.replicator import GroupNews, SyncResult
from airflow_outbox.positions.reporting import Reporter, said_of, shown_of, state_of, summed_up
from airflow_outbox.values.positions import GroupState, PositionsReport, SeenGroup

PLACE = ("orders", 0)
HOME = Side({PLACE: Committed(30)}, {}, True)
BACKUP = Side({PLACE: Committed(18)}, {PLACE: Mark("primary", 20, 18, 1_000)})
FOLLOWING = GroupNews(Decision(home="primary"), {"primary": HOME, "west": BACKUP})
STATES = {
    GroupState.FOLLOWING: FOLLOWING,
    GroupState.FAILING: GroupNews(Decision(home="primary"), failure="cluster west: no"),
    GroupState.LEFT_ALONE: GroupNews(Decision(homes=("primary", "west"))),
    GroupState.LACKING: GroupNews(FOLLOWING.decision, FOLLOWING.sides, not_there=(("west", ("orders", 3)),)),
    GroupState.WAITING: GroupNews(Decision(home="primary", waiting=("west",)), FOLLOWING.sides),
    GroupState.UNKNOWN: GroupNews(),
}


@pytest.mark.parametrize("state", GroupState)
def test_a_group_is_in_one_state(state: GroupState) -> None:
    assert state_of(STATES[state]) is state


def test_what_needs_somebody_is_said_and_comes_first() -> None:
    look = SyncResult(
        {f"{state}-{number}": news for state, news in STATES.items() for number in range(5)}, {"north": "gone"}
    )
    said = said_of(look)
    assert said[0] == "positions: cluster north: gone"
    assert "positions of failing-0: cluster west: no" in said
    assert "positions of 2 more groups are left alone" in said
    assert not any("following" in each or "unknown" in each for each in said)
    states = [SeenGroup.parse(each).state for each in shown_of(look)]
    assert states == [state for state in GroupState for _ in range(5)]


def test_a_group_is_shown_as_it_was_seen() -> None:
    [found] = [SeenGroup.parse(each) for each in json.loads(json.dumps(shown_of(SyncResult({"app": FOLLOWING}, {}))))]
    assert (found.group, found.home, found.behind) == ("app", "primary", {"west": 10})
    assert found.synced_at == datetime.fromtimestamp(1, UTC)
    assert found.why.startswith("reads on primary; west is 10 offsets behind")
    assert summed_up(SyncResult({"app": FOLLOWING, "other": FOLLOWING}, {}, seconds=0.25)) == {
        "groups": {"following": 2},
        "behind": {"west": 10},
        "seconds": 0.25,
    }


def test_of_many_groups_some_are_shown() -> None:
    groups = {f"app-{number:04}": FOLLOWING for number in range(1_000)} | {"zoo": STATES[GroupState.FAILING]}
    shown = shown_of(SyncResult(groups, {}))
    assert (len(shown), shown[0]["group"]) == (200, "zoo")


def test_failures_are_counted_and_told_with_the_last_numbers() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    reporter = Reporter(lambda event, **fields: told.append((event, fields)))
    reporter.take(SyncResult({"app": FOLLOWING}, {}, commits=3, failures=1))
    reporter.complain("Postgres is away")
    reports = [fields["report"] for event, fields in told if event == "positions_seen"]
    assert [report["failures"] for report in reports] == [1, 2]
    assert reports[1]["groups"] == {"following": 1}
    assert reports[1]["said"] == ["positions are not replicated: Postgres is away"]
    assert [fields["shown"] is None for event, fields in told if event == "positions_seen"] == [False, True]


def test_reports_and_groups_of_a_later_release_can_be_read() -> None:
    report = PositionsReport.parse({"member": "a:1", "told_at": "2026-01-01T00:00:00+00:00", "new": 1, "failures": 2})
    assert report.failures == 2
    later = SeenGroup.parse({**shown_of(SyncResult({"app": FOLLOWING}, {}))[0], "state": "new", "more": 1})
    assert later.state is GroupState.UNKNOWN
