"""OutboxPositionsSensor in a real Airflow: a task waits in the triggerer until a group may move to another cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from support.harvesting import CHILD, PARTITIONS, PATIENCE, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.positions_process import COMMAND
from airflow_outbox.positions.process import replicator_of
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements

from .conftest import ROLE, drop, processes_of

DAG, TASK = "move", "wait"


@pytest.fixture
def moving(
    outboxes: dict[str, Outbox], kafka: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str
) -> Iterator[Outbox]:
    """An outbox that is published to two clusters, with extents. Nobody replicates positions."""
    backup.start()
    database = outboxes["drained"].database
    servers = {"primary": kafka, "backup": backup}
    clusters = {name: {"bootstrap.servers": server.bootstrap} for name, server in servers.items()}
    outbox = make_outbox(
        database,
        bootstrap=kafka.bootstrap,
        topic=f"{topic_prefix}moving",
        outbox_table="moving",
        clusters=clusters,
        positions={"enabled": True},
    )
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in grant_statements(connection, OutboxName.parse("moving"), "harvest", ROLE):
            connection.execute(statement.encode())
    member = Process(CHILD, first_line={"config": outbox.settings, "until": "forever"})
    try:
        outbox.stash(100)
        wait_until(lambda: outbox.left() == 0, doing=lambda: str(member.events))
        yield outbox
    finally:
        member.end()
        drop(outbox)


def commit_the_end(outbox: Outbox, group: str) -> None:
    """The group has read all, and its consumers have ended."""
    settings: dict[str, Any] = {"bootstrap.servers": outbox.bootstrap, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        places = [TopicPartition(outbox.topic, number) for number in range(PARTITIONS)]
        for place in places:
            _, place.offset = consumer.get_watermark_offsets(place, timeout=PATIENCE)
        consumer.commit(offsets=places, asynchronous=False)


def test_a_task_waits_until_a_group_may_move(airflow: AirflowStandalone, moving: Outbox) -> None:
    group = f"{moving.topic}-readers"
    commit_the_end(moving, group)
    airflow.api.unpause(DAG)
    run_id = airflow.api.trigger(DAG, conf={"group": group})
    airflow.api.wait_for_task(DAG, run_id, TASK, "deferred", timeout=PATIENCE)
    waits = f"the position of group {group} is not yet on backup"
    airflow.api.wait(lambda: waits in airflow.api.task_log(DAG, run_id, TASK), timeout=PATIENCE, what="why it waits")
    wait_until(lambda: len(processes_of(airflow, COMMAND[-1])) == 1, doing="one process that watches")
    assert airflow.api.task(DAG, run_id, TASK)["state"] == "deferred"
    config = HarvestConfig.validated(moving.settings, source="test")
    with closing(replicator_of(config, groups=[group])) as replicator:

        def is_done() -> bool:
            news = replicator.look().groups[group]
            return news.failure is None and not news.decision.commits

        wait_until(is_done)
    airflow.api.wait_for_task(DAG, run_id, TASK, "success", timeout=PATIENCE)
    assert airflow.api.xcom(DAG, run_id, TASK) == group
    wait_until(lambda: not processes_of(airflow, COMMAND[-1]), doing="the end of the process that watches")
