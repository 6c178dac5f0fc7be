"""What stands of a member's troubles, as the engine's events come."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_outbox.harvest.troubles import StandingTroubles
from airflow_outbox.values.verdict import TroubleKind


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.passed: list[tuple[str, dict[str, Any]]] = []
        self.troubles = StandingTroubles(lambda event, **fields: self.passed.append((event, fields)), lambda: self.now)

    def error(self, text: str, retry_in: float | None = 0.1) -> None:
        self.troubles("error", error=text, retry_in=retry_in)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_events_are_passed_on_unchanged(scene: Scene) -> None:
    scene.troubles("view", shard=0, view="x")
    assert scene.passed == [("view", {"shard": 0, "view": "x"})]
    assert scene.troubles.worst is None


def test_a_failed_take_over_stands_until_one_succeeds_or_the_leadership_ends(scene: Scene) -> None:
    for end in ("view", "stood_by", "fenced", "resigned"):
        scene.error("no take-over")
        assert scene.troubles.worst == (TroubleKind.TAKE_OVER, "no take-over")
        scene.troubles(end)
        assert scene.troubles.worst is None
        scene.troubles("stood_by")


def test_a_failed_term_is_the_fence_rows_matter_and_the_next_take_over_is_not(scene: Scene) -> None:
    scene.troubles("view")
    scene.error("the term")
    assert scene.troubles.worst is None
    scene.error("the take-over after it")
    assert scene.troubles.worst == (TroubleKind.TAKE_OVER, "the take-over after it")


def test_a_complaint_that_stops_nothing_is_no_trouble(scene: Scene) -> None:
    scene.error("complaint", retry_in=None)
    assert scene.troubles.worst is None


def test_a_quota_is_over_when_no_event_tells_it(scene: Scene) -> None:
    scene.troubles("throttled", seconds=1.0, client_id="shop")
    kind, text = scene.troubles.worst or (None, "")
    assert (kind, "client id shop" in text) == (TroubleKind.QUOTA, True)
    scene.now = 11.0
    assert scene.troubles.worst is not None
    scene.now = 13.0
    assert scene.troubles.worst is None


def test_the_worst_is_told(scene: Scene) -> None:
    scene.troubles("throttled", seconds=1.0, client_id="shop")
    scene.error("take-over")
    scene.troubles.found(TroubleKind.KAFKA, "away")
    told = []
    for kind in (TroubleKind.KAFKA, TroubleKind.TAKE_OVER, TroubleKind.QUOTA):
        told.append((scene.troubles.worst or (None,))[0])
        scene.troubles.found(kind, None)
    assert told == [TroubleKind.KAFKA, TroubleKind.TAKE_OVER, TroubleKind.QUOTA]
    assert scene.troubles.worst is None
