"""How long it takes until records come out again after the primary cluster was lost, from the operator's command on."""

from __future__ import annotations

import itertools

import pytest
from faults.regions import Region, regional

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from timings.faults.best import best

pytestmark = pytest.mark.timed

GOES_ON_WITHIN = 10.0
"""Seconds. The time-outs of a cluster that is lost would add a minute."""


def test_within_ten_seconds(postgres: EmbeddedPostgres, regions_of_two: dict[str, Region], topic_prefix: str) -> None:
    topics = (f"{topic_prefix}{number}" for number in itertools.count())

    def goes_on() -> float:
        topic = next(topics)
        database = postgres.create_database(topic)
        with regional(database, regions_of_two, topic) as scene:
            scene.leader()
            scene.start().wait_for("progress", standing="standby")
            took = scene.loses(regions_of_two["primary"].kafka)
            scene.ends_well("west")
        postgres.drop_database(topic)
        return took

    best(goes_on, within=GOES_ON_WITHIN)
