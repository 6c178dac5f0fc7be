"""How soon a run is told what was published, also while the scheduler was away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from integration.airflow.conftest import Harvester, clean_up, stopped_scheduler
from integration.airflow.events import AssetEvents
from support.harvesting import Outbox

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from timings.faults.best import best

pytestmark = pytest.mark.alone

TOLD_WITHIN = 15
AWAY = 20


@pytest.fixture
def metadata_dsn(airflow: AirflowStandalone, postgres: EmbeddedPostgres, metadata: str) -> Iterator[str]:
    yield postgres.dsn(metadata)
    clean_up(airflow, postgres.dsn(metadata))


@pytest.fixture
def harvester(outboxes: dict[str, Outbox]) -> Iterator[Harvester]:
    harvester = Harvester(outboxes["published"])
    harvester.start()
    yield harvester
    harvester.stop()


def told_within(airflow: AirflowStandalone, dag: str, uri: str, outbox: Outbox, metadata: str) -> None:
    airflow.api.unpause(dag)
    events = AssetEvents(metadata, dag, uri)

    def seconds() -> float:
        events.stored_by(outbox)
        with stopped_scheduler(airflow):
            events.stored_by(outbox)
            time.sleep(AWAY)
            events.stored_by(outbox)
        begun = time.monotonic()
        events.wait_until_all_are_told()
        return time.monotonic() - begun

    best(seconds, within=TOLD_WITHIN)


def test_of_an_asset_that_harvests(airflow: AirflowStandalone, outboxes: dict[str, Outbox], metadata_dsn: str) -> None:
    told_within(airflow, "watching", "published", outboxes["watched"], metadata_dsn)


@pytest.mark.parametrize("uri", ["kafka://%", "outbox://%"])
def test_of_an_asset_that_follows_the_watermark(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], harvester: Harvester, metadata_dsn: str, uri: str
) -> None:
    told_within(airflow, "on_topic", uri, outboxes["published"], metadata_dsn)
