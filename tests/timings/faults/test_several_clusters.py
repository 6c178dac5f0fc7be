"""A cluster that all wait for is away, and comes back: how soon that is known, and how soon records come again."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from faults.two_clusters import TwoClusters, is_held
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from timings.faults.best import best

pytestmark = pytest.mark.timed

HELD_WITHIN = 3.0
BACK_WITHIN = 3.0


def goes(clusters: TwoClusters, backup: EmbeddedKafka) -> float:
    """The backup is lost; the seconds until that is known."""
    wait_until(lambda: clusters.outbox.left() == 0)
    backup.kill()
    killed_at = time.monotonic()
    clusters.stash(200)
    wait_until(lambda: is_held([], clusters.config))
    return time.monotonic() - killed_at


def comes_back(clusters: TwoClusters, backup: EmbeddedKafka) -> float:
    """The seconds until records come again."""
    waiting = clusters.outbox.left()
    backup.start()
    Producer({"bootstrap.servers": backup.bootstrap, "transactional.id": "probe"}).init_transactions(PATIENCE)
    return wait_until(lambda: clusters.outbox.left() < waiting)


def test_that_a_backup_is_away_is_known_within_three_seconds(clusters: TwoClusters, backup: EmbeddedKafka) -> None:
    clusters.start()
    clusters.stash(200)

    def known() -> float:
        took = goes(clusters, backup)
        comes_back(clusters, backup)
        return took

    best(known, within=HELD_WITHIN)
    clusters.ends_well()


def test_when_it_is_back_records_come_within_three_seconds(clusters: TwoClusters, backup: EmbeddedKafka) -> None:
    clusters.start()
    clusters.stash(200)

    def back() -> float:
        goes(clusters, backup)
        return comes_back(clusters, backup)

    best(back, within=BACK_WITHIN)
    clusters.ends_well()
