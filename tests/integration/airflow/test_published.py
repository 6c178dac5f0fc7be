"""Sensors that wait for tickets, and assets that tell what is published, in a real Airflow whose triggerer is killed.

The harvester is a process of its own, and no business of this Airflow's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE, Outbox, wait_until

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.airflow import AirflowStandalone

from .conftest import PASSWORD, Harvester, files_with, kill_triggerers, wait_for_log, wait_until_deferred

WAIT, PUBLISHED = "wait", "published"


@pytest.fixture(scope="module")
def outbox(outboxes: dict[str, Outbox]) -> Outbox:
    return outboxes["published"]


@pytest.fixture(autouse=True)
def no_secret_was_logged(airflow: AirflowStandalone, nothing_is_left: None) -> Iterator[None]:
    yield
    assert any(f"task_id={PUBLISHED}" in str(path) for path in files_with(airflow, ""))
    assert files_with(airflow, PASSWORD) == []


def start(airflow: AirflowStandalone, dag_id: str, **conf: object) -> str:
    airflow.api.unpause(dag_id)
    return airflow.api.trigger(dag_id, conf=conf)


def stashed(outbox: Outbox, count: int = 1) -> Ticket:
    with closing(psycopg.connect(outbox.database)) as connection, connection.transaction():
        records = [OutboxRecord(outbox.topic, f"k{number % 7}", str(number)) for number in range(count)]
        return stash(connection, records, outbox=outbox.name)


def test_a_sensor_waits_for_what_the_task_before_has_stashed(
    airflow: AirflowStandalone, outbox: Outbox, harvester: Harvester
) -> None:
    run_id = start(airflow, "publish")
    wait_until_deferred(airflow, "publish", run_id, PUBLISHED)
    wait_for_log(airflow, "publish", run_id, PUBLISHED, "is committed; 1 records of it still wait to be published")
    harvester.start()
    airflow.api.wait_for_task("publish", run_id, PUBLISHED, "success", timeout=PATIENCE)
    assert outbox.left() == 0
    ticket = airflow.api.xcom("publish", run_id, "stash")
    assert airflow.api.xcom("publish", run_id, PUBLISHED) == ticket
    wait_for_log(airflow, "publish", run_id, PUBLISHED, "all of transaction")

    again = start(airflow, WAIT, ticket=ticket)  # which finds it published at once
    airflow.api.wait_for_task(WAIT, again, PUBLISHED, "success", timeout=PATIENCE)


def test_a_sensor_fails_when_the_transaction_was_rolled_back(
    airflow: AirflowStandalone, outbox: Outbox, harvester: Harvester
) -> None:
    harvester.start()
    with closing(psycopg.connect(outbox.database)) as writer:
        ticket = stash(writer, OutboxRecord(outbox.topic, "k", "v"), outbox=outbox.name)
        run_id = start(airflow, WAIT, ticket=str(ticket))
        wait_until_deferred(airflow, WAIT, run_id, PUBLISHED)
        writer.rollback()
    airflow.api.wait_for_task(WAIT, run_id, PUBLISHED, "failed", timeout=PATIENCE)
    wait_for_log(airflow, WAIT, run_id, PUBLISHED, "was rolled back")


def told(airflow: AirflowStandalone, asset: str) -> list[dict[str, Any]]:
    """The events of an asset, as the runs of its Dag were told, oldest first."""
    found = [airflow.api.xcom("on_topic", run["dag_run_id"], "told") or {} for run in airflow.api.runs("on_topic")]
    return sorted((event for events in found for event in events.get(asset, ())), key=lambda event: event["at"])


def count(events: list[dict[str, Any]]) -> int:
    return sum(event["published"] for event in events)


@pytest.mark.long
def test_sensors_and_assets_go_on_after_the_triggerers_death_and_nothing_is_left_out(
    airflow: AirflowStandalone, outbox: Outbox, harvester: Harvester
) -> None:
    airflow.api.unpause("on_topic")
    harvester.start()
    before = outbox.query("SELECT coalesce(sum(value::bigint), 0) FROM published_published, jsonb_each_text(topics)")
    stashed(outbox, 50)
    expected = int(before[0][0]) + 50
    for asset in ("topic", "outbox"):
        airflow.api.wait(
            lambda asset=asset: count(told(airflow, asset)) >= expected,
            timeout=PATIENCE,
            what=f"events: {asset}",
        )
        assert count(told(airflow, asset)) == expected

    harvester.stop()
    ticket = stashed(outbox, 30)
    run_id = start(airflow, WAIT, ticket=str(ticket))
    wait_until_deferred(airflow, WAIT, run_id, PUBLISHED)
    kill_triggerers(airflow)
    harvester.start()
    wait_until(lambda: outbox.left() == 0, doing="the harvest")  # while nobody listens
    airflow.start_triggerer()
    airflow.api.wait_for_task(WAIT, run_id, PUBLISHED, "success", timeout=PATIENCE)
    expected += 30
    for asset in ("topic", "outbox"):
        airflow.api.wait(
            lambda asset=asset: count(told(airflow, asset)) >= expected,
            timeout=PATIENCE,
            what=f"events: {asset}",
        )
        events = told(airflow, asset)
        assert count(events) == expected
        assert {event["outbox"] for event in events} == {outbox.name}
        assert all(set(event["topics"]) == {outbox.topic} for event in events)
        for earlier, later in itertools.pairwise(events):
            assert later["batches"][0] == earlier["batches"][1] + 1
    airflow.api.pause("on_topic")
