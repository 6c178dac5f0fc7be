"""Lineage: the names of datasets, by OpenLineage's conventions. Postgres' answers are tested with a real one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from airflow.providers.common.compat.assets import Asset
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.providers.standard.operators.empty import EmptyOperator
from openlineage.client.event_v2 import Dataset

from airflow_outbox.hooks.lineage import (
    TableLocation,
    kafka_namespace,
    lineage_of,
    postgres_namespace,
    topic_datasets,
)
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor

HERE = TableLocation("postgres://db.example:5433", "shop", "sales", "Out.box", "public")


def names(datasets: list[Dataset]) -> list[str]:
    assert {dataset.namespace for dataset in datasets} <= {HERE.namespace}
    return [dataset.name for dataset in datasets]


@pytest.mark.parametrize(
    ("host", "port", "namespace"),
    [
        ("DB.example", 5433, "postgres://db.example:5433"),
        ("db.example", None, "postgres://db.example:5432"),
        ("one, two", 5432, "postgres://one:5432"),
        ("/run/postgresql", None, "postgres://localhost:5432"),
        (None, None, "postgres://localhost:5432"),
    ],
)
def test_a_server_is_named_by_its_address(host: str | None, port: int | None, namespace: str) -> None:
    assert postgres_namespace(host, port) == namespace


@pytest.mark.parametrize(
    ("brokers", "namespace"),
    [
        ("kafka.example:9093", "kafka://kafka.example:9093"),
        ("one:1, two:2", "kafka://one:1"),
        ("SASL_SSL://One:9094,two", "kafka://one:9094"),
        ("one", "kafka://one:9092"),
        ("[::1]:9095", "kafka://[::1]:9095"),
        ("[::1]", "kafka://[::1]:9092"),
    ],
)
def test_a_cluster_is_named_by_its_first_broker(brokers: str, namespace: str) -> None:
    assert kafka_namespace(brokers) == namespace


def test_a_table_is_named_with_database_and_schema() -> None:
    assert HERE.dataset == Dataset(namespace="postgres://db.example:5433", name="shop.sales.Out.box")


@pytest.mark.usefixtures("connections")
def test_topics_are_named_on_the_brokers_of_the_connection() -> None:
    assert topic_datasets("kafka_default", ["orders", "audit", "orders"]) == [
        Dataset(namespace="kafka://kafka.example:9092", name="audit"),
        Dataset(namespace="kafka://kafka.example:9092", name="orders"),
    ]


@pytest.mark.parametrize(
    ("statement", "read", "written"),
    [
        ("INSERT INTO business (run) VALUES (%(run)s)", [], ["shop.public.business"]),
        ("INSERT INTO a.b SELECT * FROM c WHERE d = %s", ["shop.public.c"], ["shop.a.b"]),
        ("UPDATE one SET n = 1; UPDATE two SET n = 2", [], ["shop.public.one", "shop.public.two"]),
        ("nothing that Postgres knows", [], []),
        ("", [], []),
    ],
)
def test_the_tables_of_a_statement(statement: str, read: list[str], written: list[str]) -> None:
    inputs, outputs = HERE.touched_by(statement)
    assert names(inputs) == read
    assert sorted(names(outputs)) == written


def test_what_a_dag_declares_is_told_too_and_once() -> None:
    topic = Asset("kafka://kafka.example:9092/orders")
    source = Asset("postgres://db.example:5433/shop/public/prices")
    task = EmptyOperator(task_id="task", inlets=[source], outlets=[topic, Asset("unknown")])
    known = Dataset(namespace="kafka://kafka.example:9092", name="orders")
    told = lineage_of(task, inputs=[HERE.dataset], outputs=[known])
    assert names(told.inputs) == [HERE.dataset.name, "shop.public.prices"]
    assert told.outputs == [known]


@pytest.mark.parametrize(
    "task",
    [
        OutboxHarvestSensor(task_id="task"),
        OutboxPublishedSensor(task_id="task", ticket=""),
        OutboxStashOperator(task_id="task", records=[]),
        OutboxSparkSubmitOperator(task_id="task", application="job.py"),
    ],
    ids=lambda task: type(task).__name__,
)
def test_the_provider_asks_each_task_at_its_start_its_end_and_its_failure(
    task: OutboxHarvestSensor | OutboxPublishedSensor | OutboxStashOperator | OutboxSparkSubmitOperator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableLocation, "find", lambda hook: HERE)
    monkeypatch.setattr("airflow_outbox.hooks.lineage.published_topics", lambda hook: [])
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}')
    extractor = DefaultExtractor(task)
    for told in (extractor.extract(), extractor.extract_on_complete(None), extractor.extract_on_failure(None)):
        assert told is not None
        assert HERE.dataset in (*told.inputs, *told.outputs)


@pytest.mark.usefixtures("connections")
def test_a_harvest_that_has_ended_tells_the_topics_that_postgres_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableLocation, "find", lambda hook: HERE)
    monkeypatch.setattr("airflow_outbox.hooks.lineage.published_topics", lambda hook: ["orders"])
    task = OutboxHarvestSensor(task_id="task")
    assert [dataset.name for dataset in task.get_openlineage_facets_on_start().outputs] == ["orders"]
    task.execute_complete({}, {"status": "ended", "reason": "drained", "published": 1, "topics": {"audit": 1}})
    assert [dataset.name for dataset in task.get_openlineage_facets_on_start().outputs] == ["audit", "orders"]


def test_tasks_need_nothing_of_openlineage() -> None:
    code = (
        "import sys\n"
        "absent = ['openlineage', 'openlineage_sql']\n"
        "absent += ['airflow.providers.openlineage.extractors', 'airflow.providers.openlineage.sqlparser']\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from airflow_outbox.operators.spark import OutboxSparkSubmitOperator as spark\n"
        "from airflow_outbox.operators.stash import OutboxStashOperator as stash\n"
        "from airflow_outbox.sensors.harvest import OutboxHarvestSensor as harvest\n"
        "from airflow_outbox.sensors.published import OutboxPublishedSensor as published\n"
        "spark(task_id='t', application='j'), stash(task_id='t', records=[]), harvest(task_id='t')\n"
        "published(task_id='t', ticket='')\n"
        "try:\n"
        "    import openlineage.client\n"
        "except ImportError:\n"
        "    print('all without it')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.endswith("all without it\n"), ran.stderr
