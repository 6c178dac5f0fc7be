"""register(): what the operator has passed to a job, and what the job says itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.spark.shop import Shop
from pyspark.sql import SparkSession

from airflow_outbox.spark import register, registration, settings


@pytest.fixture
def submitted(shop: Shop, spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with the properties that the operator sets."""
    (tmp_path / "data_source").write_text(shop.url)
    properties = {
        settings.OUTBOX_TABLE: "public.outbox",
        settings.APP_ID: "airflow/job/run",
        settings.VERSION: "4",
        settings.DATA_SOURCE_FILE: str(tmp_path / "data_source"),
    }
    for name, value in properties.items():
        spark.conf.set(name, value)
    yield spark
    for name in properties:
        spark.conf.unset(name)
    registration._given.clear()
    register(spark)


@pytest.mark.parametrize(
    ("options", "commit"),
    [
        ({"Topic": "orders"}, ("airflow/job/run", 4)),
        ({"Topic": "orders", "TxnVersion": "5"}, ("airflow/job/run", 5)),
        ({"Topic": "orders", "TxnAppId": "mine"}, ("mine", 0)),
    ],
    ids=["neither", "version", "id"],
)
def test_options_of_the_jobs_own_join_what_the_operator_has_passed(
    shop: Shop, submitted: SparkSession, options: dict[str, str], commit: tuple[str, int]
) -> None:
    register(submitted, options=options)
    frame = submitted.range(1).selectExpr("'k' AS key", "'v' AS value")
    frame.write.format("outbox").mode("append").save()
    assert shop.rows("SELECT app_id, version FROM outbox_commits") == [commit]
    assert shop.rows("SELECT kafka_topic FROM outbox") == [("orders",)]


def test_a_url_of_the_jobs_own_needs_no_file(shop: Shop, submitted: SparkSession) -> None:
    submitted.conf.set(settings.DATA_SOURCE_FILE, "/nowhere")
    register(submitted, options={"url": shop.url})
