"""Two writes in one job, under the id that its session has: the second one is an error, in every try of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.spark.shop import Shop
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_outbox.errors import JobError
from airflow_outbox.spark import register, registration
from airflow_outbox.spark.batch import batch_writer
from airflow_outbox.spark.options import read_options

SECOND = r"the job writes a second time, but its id, airflow/job/run, commits only once.*such as airflow/job/run/2"


@pytest.fixture
def new_driver(shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes the session that of another try of the job: what the driver has noted is gone."""

    def begin() -> None:
        registration._notes.cache_clear()
        register(spark, options={"url": shop.url, "txnAppId": "airflow/job/run"})

    begin()
    yield begin
    registration._given.clear()
    register(spark)


@pytest.fixture
def few(spark: SparkSession) -> DataFrame:
    return spark.range(3).coalesce(1).selectExpr("'orders' AS topic", "'k' AS key", "CAST(id AS string) AS value")


def test_the_second_write_is_an_error_in_every_try_and_has_an_id_of_its_own_where_it_is_none(
    shop: Shop, few: DataFrame, new_driver: Callable[[], None]
) -> None:
    its_own = {"txnAppId": "airflow/job/run/2"}
    shop.write(few)
    new_driver()
    shop.write(few)
    with pytest.raises(PySparkException, match=SECOND):
        shop.write(few)
    assert shop.counts() == (3, 0, 1)
    shop.write(few, **its_own)
    new_driver()
    shop.write(few, **its_own)
    shop.write(few)
    assert shop.counts() == (6, 0, 2)


def test_of_two_writes_that_are_planned_at_once_one_is_an_error(
    shop: Shop, few: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = read_options({"url": shop.url, "txnAppId": "airflow/job/run"})
    one, other = [batch_writer(few.schema, options, wrote=tmp_path / "wrote") for _ in range(2)]
    one.commit([])
    assert caplog.messages == []
    with pytest.raises(JobError, match=SECOND):
        other.commit([])


@pytest.mark.parametrize("moment", ["planned", "committed"])
def test_a_write_that_commits_nothing_says_so(
    shop: Shop, few: DataFrame, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    options = read_options({"url": shop.url, "txnAppId": "orders", "txnVersion": "3"})
    first, again = batch_writer(few.schema, options), batch_writer(few.schema, options)
    first.commit([])
    if moment == "planned":
        again = batch_writer(few.schema, options)
    assert again.is_done == (moment == "planned")
    again.commit([])
    assert caplog.messages == ["orders, version 3, was committed before; nothing is written again"]
