"""A member's standing troubles, as the engine's events come."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.harvest.trouble_reporting import StandingTroubles, TroubleTeller
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.verdict import TroubleKind


class Heard:
    def __init__(self) -> None:
        self.now = 0.0
        self.passed: list[tuple[str, dict[str, Any]]] = []
        self.troubles = StandingTroubles(lambda event, **fields: self.passed.append((event, fields)), lambda: self.now)

    def error(self, text: str, retry_in: float | None = 0.1) -> None:
        self.troubles("error", error=text, retry_in=retry_in)


@pytest.fixture
def scene() -> Heard:
    return Heard()


def test_events_are_passed_on_unchanged(scene: Heard) -> None:
    scene.troubles("view", shard=0, view="x")
    assert scene.passed == [("view", {"shard": 0, "view": "x"})]
    assert scene.troubles.worst is None


def test_a_failed_take_over_stands_until_one_succeeds_or_the_leadership_ends(scene: Heard) -> None:
    for end in ("view", "stood_by", "fenced", "resigned"):
        scene.error("no take-over")
        assert scene.troubles.worst == (TroubleKind.TAKE_OVER, "no take-over", 0)
        scene.troubles(end)
        assert scene.troubles.worst is None
        scene.troubles("stood_by")


def test_a_failed_term_is_the_fence_rows_matter_and_the_next_take_over_is_not(scene: Heard) -> None:
    scene.troubles("view")
    scene.error("the term")
    assert scene.troubles.worst is None
    scene.error("the take-over after it")
    assert scene.troubles.worst == (TroubleKind.TAKE_OVER, "the take-over after it", 0)


def test_a_complaint_that_stops_nothing_is_no_trouble(scene: Heard) -> None:
    scene.error("complaint", retry_in=None)
    assert scene.troubles.worst is None


def test_a_quota_is_over_when_no_event_tells_it(scene: Heard) -> None:
    scene.troubles("throttled", seconds=1.0, client_id="shop")
    kind, text, _ = scene.troubles.worst or (None, "", None)
    assert (kind, "client id shop" in text) == (TroubleKind.QUOTA, True)
    scene.now = 11.0
    assert scene.troubles.worst is not None
    scene.now = 13.0
    assert scene.troubles.worst is None


def test_the_worst_is_told(scene: Heard) -> None:
    scene.troubles("throttled", seconds=1.0, client_id="shop")
    scene.error("take-over")
    scene.troubles.found(TroubleKind.KAFKA, "away")
    told = []
    for kind in (TroubleKind.KAFKA, TroubleKind.TAKE_OVER, TroubleKind.QUOTA):
        told.append((scene.troubles.worst or (None,))[0])
        scene.troubles.found(kind, None, shard=0 if kind is TroubleKind.TAKE_OVER else None)
    assert told == [TroubleKind.KAFKA, TroubleKind.TAKE_OVER, TroubleKind.QUOTA]
    assert scene.troubles.worst is None


def test_progress_says_how_each_of_several_clusters_is_doing(scene: Heard) -> None:
    scene.troubles("progress", published=1)
    scene.troubles.clusters = {"primary": None, "west": "away"}
    scene.troubles("progress", published=2)
    assert [fields for _, fields in scene.passed] == [
        {"published": 1},
        {"published": 2, "clusters": {"primary": None, "west": "away"}},
    ]


def test_a_take_over_that_succeeds_ends_no_other_shards_trouble(scene: Heard) -> None:
    scene.troubles("error", shard=2, error="no take-over", retry_in=0.1)
    for event in ("view", "error", "stood_by"):
        scene.troubles(event, shard=1, error="a term", retry_in=0.1)
        assert scene.troubles.worst == (TroubleKind.TAKE_OVER, "no take-over", 2)
    scene.troubles("resigned")  # from all
    assert scene.troubles.worst is None


def test_batches_without_extents_are_a_trouble_until_they_have_them_again(scene: Heard) -> None:
    def told(cluster: str, error: str | None, shard: int = 1) -> str | None:
        scene.troubles("extents", shard=shard, cluster=cluster, error=error, batches=1)
        return (scene.troubles.worst or (None, None))[1]

    assert "cluster east go without extents, which makes positions less exact: no" in (told("east", "no") or "")
    assert "cluster east" in (told("west", "neither") or "")
    assert "cluster west" in (told("east", None) or "")
    assert told("west", None) is None


@pytest.mark.parametrize("end", ["stood_by", "fenced", "resigned"])
def test_who_leads_no_longer_tells_no_longer_of_extents(scene: Heard, end: str) -> None:
    for cluster in ("east", "west"):
        scene.troubles("extents", shard=1, cluster=cluster, error="no", batches=1)
    scene.troubles("stood_by", shard=0)
    kind, _, shard = scene.troubles.worst or (None, "", None)
    assert (kind, shard) == (TroubleKind.EXTENTS, 1)
    scene.troubles(end, shard=1)
    assert scene.troubles.worst is None
    scene.troubles("extents", shard=1, cluster="east", error=None, batches=1)
    assert scene.troubles.worst is None


async def test_a_tellers_threads_end_with_it(scene: Heard) -> None:
    """A command makes another one whenever its configuration changes."""
    before = set(threading.enumerate())
    asks = {"primary": lambda: None, "west": lambda: None}
    teller = TroubleTeller("", OutboxName.parse("outbox"), scene.troubles, asks, dict)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 3
    await teller.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
