"""The life of the sensor and the trigger in a real Airflow with a real triggerer. The last test kills the triggerer."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from support.harvesting import Outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.values.records import Ticket

from .conftest import AIRFLOW_PATIENCE, PASSWORD, gone, harvesting

pytestmark = pytest.mark.alone

TASK = "harvest"
USER_END_SECONDS = 15


def start(airflow: AirflowStandalone, dag_id: str, **conf: object) -> str:
    airflow.api.unpause(dag_id)
    return airflow.api.trigger(dag_id, conf=conf)


def start_harvest(airflow: AirflowStandalone, outbox: Outbox, dag_id: str) -> tuple[str, psutil.Process]:
    """A run that harvests for ever, and its process, once it has published something."""
    run_id = start(airflow, dag_id)
    airflow.api.wait_for_task(dag_id, run_id, TASK, "deferred", timeout=AIRFLOW_PATIENCE)
    return run_id, published_by(airflow, outbox)


def published_by(airflow: AirflowStandalone, outbox: Outbox) -> psutil.Process:
    outbox.stash(100)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")
    (process,) = harvesting(airflow)
    return process


def test_a_sensor_ends_when_the_outbox_is_drained(airflow: AirflowStandalone, outboxes: dict[str, Outbox]) -> None:
    outbox = outboxes["drained"]
    outbox.stash(3000)
    run_id = start(airflow, "drain")
    airflow.api.wait_for_task("drain", run_id, TASK, "success", timeout=AIRFLOW_PATIENCE)
    assert airflow.api.xcom("drain", run_id, TASK) == {"reason": "drained", "published": 3000}
    assert (outbox.left(), len(outbox.committed())) == (0, 3000)
    assert not harvesting(airflow)


def test_a_sensor_shows_what_it_does_while_it_harvests_and_ends_when_a_user_ends_it(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox]
) -> None:
    run_id, process = start_harvest(airflow, outboxes["forever"], "forever")

    wait_until(lambda: airflow.api.xcom("forever", run_id, TASK, "progress"), doing="the XCom progress")
    progress = airflow.api.xcom("forever", run_id, TASK, "progress")
    assert {"standing", "view", "published", "in_flight", "rate"} == set(progress)
    log = airflow.api.task_log("forever", run_id, TASK)
    assert f'process {process.pid} harvests "forever"' in log
    assert "leads shard 0 under view" in log
    assert "records published" in log
    assert airflow.api.task("forever", run_id, TASK)["state"] == "deferred"

    shown = " ".join([*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())])
    assert PASSWORD not in shown
    assert "AIRFLOW" not in shown

    airflow.api.mark("forever", run_id, TASK, "failed")
    wait_until(lambda: gone(process), within=USER_END_SECONDS, doing="the end of the process")
    airflow.api.clear("forever", run_id, TASK)
    airflow.api.wait_for_task("forever", run_id, TASK, "deferred", timeout=AIRFLOW_PATIENCE)
    process = published_by(airflow, outboxes["forever"])
    airflow.api.mark("forever", run_id, TASK, "success")
    wait_until(lambda: gone(process), within=USER_END_SECONDS, doing="the end of the process")


def test_a_sensor_fails_with_what_to_do(airflow: AirflowStandalone) -> None:
    run_id = start(airflow, "misconfigured")
    airflow.api.wait_for_task("misconfigured", run_id, TASK, "failed", timeout=AIRFLOW_PATIENCE)
    assert "Run `airflow-outbox init`" in airflow.api.task_log("misconfigured", run_id, TASK)


def test_an_operator_stashes_and_returns_the_ticket(airflow: AirflowStandalone, outboxes: dict[str, Outbox]) -> None:
    outbox = outboxes["stashed"]
    run_id = start(airflow, "stash", topic=outbox.topic, version=0)
    airflow.api.wait_for_task("stash", run_id, "stash", "success", timeout=AIRFLOW_PATIENCE)
    ticket = airflow.api.xcom("stash", run_id, "stash")
    assert Ticket.parse(ticket).transaction_id > 0
    columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
    rows = [("a", run_id, ["source"], ["stash"]), ("b", None, [], [])]
    assert outbox.query(f"SELECT {columns} FROM stashed ORDER BY id") == rows
    assert outbox.query("SELECT run FROM business") == [(run_id,)]

    airflow.api.clear("stash", run_id, "stash")
    airflow.api.wait(
        lambda: airflow.api.task("stash", run_id, "stash")["try_number"] == 2,
        timeout=AIRFLOW_PATIENCE,
        what="the second try",
    )
    airflow.api.wait_for_task("stash", run_id, "stash", "success", timeout=AIRFLOW_PATIENCE)
    assert airflow.api.xcom("stash", run_id, "stash") == ticket
    assert outbox.query(f"SELECT {columns} FROM stashed ORDER BY id") == rows


def test_a_watched_asset_harvests_while_its_dag_is_unpaused_and_starts_it(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox]
) -> None:
    outbox = outboxes["watched"]
    assert not harvesting(airflow)
    airflow.api.unpause("watching")
    outbox.stash(100)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")
    (process,) = harvesting(airflow)
    for _ in range(30):
        outbox.stash(10)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")

    def told() -> list[dict[str, Any]]:
        """What the runs that the asset has started were told, oldest first."""
        runs = [run["dag_run_id"] for run in airflow.api.runs("watching")]
        events = [event for run_id in runs for event in airflow.api.xcom("watching", run_id, "seen") or ()]
        return sorted(events, key=lambda event: event["at"])

    def count() -> int:
        return sum(event["payload"]["topics"][outbox.topic] for event in told())

    airflow.api.wait(lambda: count() == 400, timeout=AIRFLOW_PATIENCE, what="events of 400 records")
    events = told()
    assert all(event["from_trigger"] and event["payload"]["outbox"] == "watched" for event in events)
    assert events[-1]["payload"]["published"] == 400
    assert len(events) <= events[-1]["at"] - events[0]["at"] + 2, "more than one a second"

    airflow.api.pause("watching")
    wait_until(lambda: gone(process), within=USER_END_SECONDS, doing="the end of the process")


def test_a_triggerer_that_is_killed_leaves_no_process_and_no_secret_was_logged(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox]
) -> None:
    _, process = start_harvest(airflow, outboxes["forever"], "forever")
    runner = process.parent()
    supervisor = runner.parent() if runner else None
    assert runner is not None
    assert supervisor is not None
    assert "triggerer" in " ".join(supervisor.cmdline())
    supervisor.kill()
    runner.kill()
    wait_until(lambda: gone(process), within=1, doing="the end of the process")

    logs = [path for path in airflow.folder.rglob("*") if path.is_file()]
    assert any("task_id=harvest" in str(path) for path in logs)
    assert [path for path in logs if PASSWORD.encode() in path.read_bytes()] == []


@pytest.fixture(autouse=True)
def _log_of_airflow_on_failure(airflow: AirflowStandalone) -> None:
    """Keep the place of Airflow's own log in the report of a test that fails."""
    print("Airflow's log:", airflow.log)
