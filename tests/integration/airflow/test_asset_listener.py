"""Every asset event is told to a run, although Airflow's queue has one row for several; and every record is in one."""

from __future__ import annotations

import pytest
from support.harvesting import Outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

from .conftest import Harvester, kill_triggerers, stopped_scheduler
from .events import AssetEvents

PUBLISHED = "SELECT coalesce(sum(value::bigint), 0) FROM published_published, jsonb_each_text(topics)"


@pytest.fixture
def metadata_dsn(postgres: EmbeddedPostgres, metadata: str) -> str:
    return postgres.dsn(metadata)


def events_of_a_stopped_schedulers_time_are_told(
    airflow: AirflowStandalone, events: AssetEvents, outbox: Outbox
) -> None:
    events.stored_by(outbox)
    events.wait_until_all_are_told()
    with stopped_scheduler(airflow):
        for _ in range(3):
            events.stored_by(outbox)
    events.wait_until_all_are_told()


def test_events_of_an_asset_that_harvests_are_told(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], metadata_dsn: str
) -> None:
    airflow.api.unpause("watching")
    events_of_a_stopped_schedulers_time_are_told(
        airflow, AssetEvents(metadata_dsn, "watching", "published"), outboxes["watched"]
    )


@pytest.mark.parametrize("uri", ["kafka://%", pytest.param("outbox://%", marks=pytest.mark.long)])
def test_events_of_an_asset_that_follows_the_watermark_are_told(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], harvester: Harvester, metadata_dsn: str, uri: str
) -> None:
    airflow.api.unpause("on_topic")
    harvester.start()
    events_of_a_stopped_schedulers_time_are_told(
        airflow, AssetEvents(metadata_dsn, "on_topic", uri), outboxes["published"]
    )


def test_each_record_counts_once_although_the_triggerer_is_killed_and_the_dag_paused(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], harvester: Harvester, metadata_dsn: str
) -> None:
    outbox = outboxes["published"]
    assets = [AssetEvents(metadata_dsn, "on_topic", uri) for uri in ("kafka://%", "outbox://%")]
    airflow.api.unpause("on_topic")
    harvester.start()
    assets[0].stored_by(outbox)
    kill_triggerers(airflow)
    outbox.stash(10)
    airflow.start_triggerer()
    assets[0].stored_by(outbox)

    airflow.api.pause("on_topic")

    def nobody_watches() -> bool:
        outbox.stash(1)
        return not any(asset.is_watched() for asset in assets)

    wait_until(nobody_watches, doing="the end of the triggers")
    outbox.stash(10)
    airflow.api.unpause("on_topic")
    wait_until(lambda: outbox.left() == 0, doing="the harvest")

    for asset in assets:
        asset.stored_by(outbox)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")
    written = len(outbox.committed())
    for found in (lambda: int(outbox.query(PUBLISHED)[0][0]), *(asset.records for asset in assets)):
        wait_until(lambda found=found: found() >= written, doing=lambda found=found: f"{found()} of {written} records")
        assert found() == written
