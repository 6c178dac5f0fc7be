"""Faults under a trigger: the verdict in the XCom, the task's log and Airflow's stats, and that it passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE, Outbox, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements
from airflow_outbox.values.verdict import State, Verdict

from .conftest import ROLE, drop, harvesting
from .statsd import StatsdListener

DAG, TASK = "faults", "harvest"


@pytest.fixture
def faulty(outboxes: dict[str, Outbox], backup: EmbeddedKafka, topic_prefix: str) -> Iterator[Outbox]:
    """An outbox of a cluster that may be stopped."""
    backup.start()
    database, topic = outboxes["drained"].database, f"{topic_prefix}faulty"
    outbox = make_outbox(database, bootstrap=backup.bootstrap, topic=topic, outbox_table="faulty")
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in grant_statements(connection, OutboxName.parse("faulty"), "harvest", ROLE):
            connection.execute(statement.encode())
    yield outbox
    backup.start()
    drop(outbox)


def test_a_trigger_shows_what_is_wrong_and_that_it_is_over(
    airflow: AirflowStandalone, faulty: Outbox, backup: EmbeddedKafka, statsd: StatsdListener
) -> None:
    airflow.api.unpause(DAG)
    run_id = airflow.api.trigger(DAG)
    logged = 0

    def in_xcom() -> dict[str, Any]:
        return (airflow.api.xcom(DAG, run_id, TASK, "progress") or {}).get("verdict") or {}

    def in_stats() -> set[str]:
        told = {stat.tags: stat.value for stat in statsd.of("faulty") if stat.name == "airflow.outbox.verdict"}
        return {dict(tags)["state"] for tags, value in told.items() if value}

    def shows(state: State, says: str) -> None:
        """All three show it, the log further down than what it has shown before."""
        nonlocal logged

        def is_shown() -> bool:
            nonlocal logged
            verdict, log = in_xcom(), airflow.api.task_log(DAG, run_id, TASK)
            found = re.compile(rf"{state.words}[: ].*{re.escape(says)}").search(log, logged)
            if found is None or verdict.get("state") != state or says not in verdict["cause"] or in_stats() != {state}:
                return False
            logged = found.end()
            return True

        airflow.api.wait(is_shown, timeout=PATIENCE, what=f"{state.words}, {says!r}, in all three")

    def look() -> Verdict:
        return read_verdict(HarvestConfig.validated(faulty.settings, source="test"))

    shows(State.HEALTHY, "leads")
    backup.kill()
    shows(State.STALLED, "can't reach Kafka at")
    backup.start()
    shows(State.HEALTHY, "leads")

    missing = f"{faulty.topic}-missing"
    with psycopg.connect(faulty.database) as connection:
        stash(connection, OutboxRecord(missing, "k", "v"), outbox="faulty")
    shows(State.LAGGING, missing)
    make_topic({"bootstrap.servers": backup.bootstrap}, missing)
    shows(State.HEALTHY, "leads")

    [member] = harvesting(airflow)
    member.suspend()
    try:
        wait_until(lambda: look().state is State.NO_LEADER, doing=lambda: str(look()))  # it can't say so itself
        assert f":{member.pid} was last heard from" in look().cause
        shows(State.UNKNOWN, f"process {member.pid} has told nothing for")
        faulty.stash(100)
    finally:
        member.resume()
    wait_until(lambda: faulty.left() == 0, doing="the harvest")
    wait_until(lambda: look().state is State.HEALTHY, doing=lambda: str(look()))
    wait_until(lambda: (in_xcom().get("state"), in_stats()) == ("healthy", {"healthy"}), doing="the XCom")
