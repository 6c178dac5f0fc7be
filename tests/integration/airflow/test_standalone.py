"""The life of the sensor and the trigger in a real Airflow with a real triggerer. The last test kills the triggerer."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import psutil
import pytest
from support.harvesting import Outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.values.metrics import METRICS, MetricKind
from airflow_outbox.values.records import Ticket

from .conftest import AIRFLOW_PATIENCE, LATE, PASSWORD, files_with, gone, harvesting, wait_for_log
from .statsd import Stat, StatsdListener

pytestmark = pytest.mark.timed

TASK = "harvest"
STATES = re.compile(r"\b(HEALTHY|LAGGING|STALLED|NO LEADER|UNKNOWN)(?=:| since )")
DISTURBED = (
    "no heartbeat was read back",
    "the group gave the role",
    "the group has not heard",
    "STALLED",
    "NO LEADER",
    "UNKNOWN",
)
"""In the log of a harvester that a busy machine has unseated, or kept from Kafka, for a moment."""


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
    wait_until(lambda: outbox.left() == 0, within=AIRFLOW_PATIENCE, doing="the harvest")
    return the_one_harvesting(airflow)


def the_one_harvesting(airflow: AirflowStandalone) -> psutil.Process:
    found: list[psutil.Process] = []

    def is_alone() -> bool:
        found[:] = harvesting(airflow)
        return len(found) == 1

    wait_until(is_alone, within=AIRFLOW_PATIENCE, doing=lambda: f"one harvesting process: {found}")
    return found[0]


def wait_for_the_end(airflow: AirflowStandalone) -> None:
    """Airflow tells the triggerer in its own time."""
    wait_until(lambda: not harvesting(airflow), within=AIRFLOW_PATIENCE, doing="the end of the process")


def test_a_sensor_ends_when_the_outbox_is_drained(airflow: AirflowStandalone, outboxes: dict[str, Outbox]) -> None:
    outbox = outboxes["drained"]
    outbox.stash(3000)
    run_id = start(airflow, "drain")
    airflow.api.wait_for_task("drain", run_id, TASK, "success", timeout=AIRFLOW_PATIENCE)
    assert airflow.api.xcom("drain", run_id, TASK) == {"reason": "drained", "published": 3000}
    assert (outbox.left(), len(outbox.committed())) == (0, 3000)
    wait_for_the_end(airflow)


def test_a_sensor_shows_what_it_does_while_it_harvests_and_ends_when_a_user_ends_it(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox]
) -> None:
    run_id, process = start_harvest(airflow, outboxes["forever"], "forever")

    def progress_of() -> dict[str, Any]:
        return airflow.api.xcom("forever", run_id, TASK, "progress") or {}

    def is_well() -> bool:
        progress = progress_of()
        waits = [progress.get(name) for name in ("backlog", "backlog_is_exact", "parked")]
        return (progress.get("verdict") or {}).get("state") == "healthy" and waits == [0, 1, {}]

    airflow.api.wait(is_well, timeout=AIRFLOW_PATIENCE, what="the verdict in the XCom")
    assert {"standing", "view", "published", "in_flight", "rate"} <= set(progress_of())
    log = wait_for_log(airflow, "forever", run_id, TASK, "HEALTHY: ")
    assert f'process {process.pid} harvests "forever"' in log
    assert "leads shard 0 under view" in log
    assert "records published" in log
    assert ("HEALTHY", "HEALTHY") not in itertools.pairwise(STATES.findall(log)), "it is told as news"
    if not any(trouble in log for trouble in DISTURBED):
        for unwanted in ("printed", "WARN", "rdkafka", "%3|", "%4|", "%5|"):
            assert unwanted not in log, "a healthy start"
    assert airflow.api.task("forever", run_id, TASK)["state"] == "deferred"
    [link] = airflow.api.links("forever", run_id, TASK).values()
    assert link is not None
    assert "/outbox/one?outbox=" in link
    assert link.endswith("%3Aforever")

    shown = " ".join([*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())])
    assert PASSWORD not in shown
    assert "AIRFLOW" not in shown

    airflow.api.mark("forever", run_id, TASK, "failed")
    wait_until(lambda: gone(process), within=AIRFLOW_PATIENCE, doing="the end of the process")
    airflow.api.clear("forever", run_id, TASK)
    airflow.api.wait_for_task("forever", run_id, TASK, "deferred", timeout=AIRFLOW_PATIENCE)
    process = published_by(airflow, outboxes["forever"])
    airflow.api.mark("forever", run_id, TASK, "success")
    wait_until(lambda: gone(process), within=AIRFLOW_PATIENCE, doing="the end of the process")


def test_a_harvest_is_in_airflows_stats(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], statsd: StatsdListener
) -> None:
    outbox, before = outboxes["forever"], len(statsd.of("forever"))
    run_id, process = start_harvest(airflow, outbox, "forever")

    def newest() -> dict[tuple[str, ...], Stat]:
        """The newest value by name and tags other than the outbox."""
        return {
            (stat.name, *(f"{label}={text}" for label, text in stat.tags if label != "outbox")): stat
            for stat in statsd.of("forever")
        }

    kinds = {
        metric.stats_name: "c" if metric.kind is MetricKind.COUNTER else "g"
        for metric in METRICS
        if metric.stats_name and not {"shard", "cluster"} & {*metric.labels}  # there is one of each
        if "positions" not in metric.stats_name  # nobody replicates any
    }
    unseen = {"outbox.fencings", "outbox.harvest_restarts"}  # nothing has happened

    def told() -> dict[str, str]:
        return {stat.name.removeprefix("airflow."): stat.kind for stat in statsd.of("forever")}

    def published() -> list[Stat]:
        return [stat for stat in statsd.of("forever")[before:] if stat.name == "airflow.outbox.published"]

    wanted = {
        ("airflow.outbox.verdict", "state=healthy"): 1,
        ("airflow.outbox.verdict", "state=stalled"): 0,
        ("airflow.outbox.backlog",): 0,
        ("airflow.outbox.parked", "cause=headers"): 0,
    }

    def is_told() -> bool:
        found = newest()
        are_as_wanted = all(names in found and found[names].value == value for names, value in wanted.items())
        are_all = sum(stat.value for stat in published()) == 100
        return are_as_wanted and are_all and told().keys() >= kinds.keys() - unseen

    wait_until(is_told, within=AIRFLOW_PATIENCE, doing=lambda: str(newest()))
    found = newest()
    assert {stat.tags for stat in published()} == {(("outbox", "forever"), ("topic", outbox.topic))}
    assert 0 < found["airflow.outbox.publish_latency", "quantile=0.99"].value < 60
    assert 0 < found["airflow.outbox.batch_time", "quantile=0.5", "stage=commit"].value < 60
    assert told().items() <= kinds.items()

    process.kill()
    wait_until(lambda: ("airflow.outbox.harvest_restarts",) in newest(), within=AIRFLOW_PATIENCE, doing="the restart")
    airflow.api.mark("forever", run_id, TASK, "success")
    wait_for_the_end(airflow)


def test_a_sensor_fails_with_what_to_do(airflow: AirflowStandalone) -> None:
    run_id = start(airflow, "misconfigured")
    airflow.api.wait_for_task("misconfigured", run_id, TASK, "failed", timeout=AIRFLOW_PATIENCE)
    wait_for_log(airflow, "misconfigured", run_id, TASK, "Run `airflow-outbox init`")


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
    wait_for_the_end(airflow)
    airflow.api.unpause("watching")
    process = published_by(airflow, outbox)
    begun = time.monotonic()
    for _ in range(30):
        outbox.stash(10)
    wait_until(lambda: outbox.left() == 0, within=AIRFLOW_PATIENCE, doing="the harvest")
    seconds = time.monotonic() - begun

    def told() -> list[dict[str, Any]]:
        """The payloads of the runs that the asset has started, oldest first."""
        runs = [run["dag_run_id"] for run in airflow.api.runs("watching")]
        events = [event for run_id in runs for event in airflow.api.xcom("watching", run_id, "seen") or ()]
        return sorted(events, key=lambda event: event["at"])

    def count() -> int:
        return sum(event["payload"]["topics"][outbox.topic] for event in told())

    airflow.api.wait(lambda: count() == 400, timeout=AIRFLOW_PATIENCE, what="events of 400 records")
    events = told()
    assert all(event["from_trigger"] and event["payload"]["outbox"] == "watched" for event in events)
    assert events[-1]["payload"]["published"] == 400
    assert len(events) <= seconds + 4, "more than one a second"  # two, and perhaps two more of what came before

    airflow.api.pause("watching")
    wait_until(lambda: gone(process), within=AIRFLOW_PATIENCE, doing="the end of the process")


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
    wait_until(lambda: gone(process), within=1 + LATE, doing="the end of the process")

    assert any("task_id=harvest" in str(path) for path in files_with(airflow, ""))
    assert files_with(airflow, PASSWORD) == []


@pytest.fixture(autouse=True)
def _log_of_airflow_on_failure(airflow: AirflowStandalone) -> None:
    """Keep the place of Airflow's own log in the report of a test that fails."""
    print("Airflow's log:", airflow.log)
