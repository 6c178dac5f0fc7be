"""The life of the sensor and the trigger in a real Airflow with a real triggerer. The last test kills the triggerer."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import psutil
from support.harvesting import PATIENCE, Outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.values.metrics import METRICS, MetricKind
from airflow_outbox.values.records import Ticket

from .conftest import PASSWORD, files_with, gone, harvesting, wait_for_log, wait_until_deferred
from .statsd import Stat, StatsdListener

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
    airflow.api.wait_for_task(dag_id, run_id, TASK, "deferred", timeout=PATIENCE)
    return run_id, published_by(airflow, outbox)


def published_by(airflow: AirflowStandalone, outbox: Outbox) -> psutil.Process:
    outbox.stash(100)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")
    return the_one_harvesting(airflow)


def the_one_harvesting(airflow: AirflowStandalone) -> psutil.Process:
    found: list[psutil.Process] = []

    def is_alone() -> bool:
        found[:] = harvesting(airflow)
        return len(found) == 1

    wait_until(is_alone, doing=lambda: f"one harvesting process: {found}")
    return found[0]


def wait_for_the_end(airflow: AirflowStandalone) -> None:
    """Airflow tells the triggerer in its own time."""
    wait_until(lambda: not harvesting(airflow), doing="the end of the process")


def test_a_sensor_ends_when_the_outbox_is_drained(airflow: AirflowStandalone, outboxes: dict[str, Outbox]) -> None:
    outbox = outboxes["drained"]
    before = len(outbox.committed())
    outbox.stash(3000)
    waiting = outbox.left()
    outbox.query("UPDATE drained_state SET paused = true, paused_at = now()")
    try:
        run_id = start(airflow, "drain")
        wait_until_deferred(airflow, "drain", run_id, TASK)
        assert outbox.left() == waiting
    finally:
        outbox.query("UPDATE drained_state SET paused = false, paused_at = NULL")
    airflow.api.wait_for_task("drain", run_id, TASK, "success", timeout=PATIENCE)
    assert airflow.api.xcom("drain", run_id, TASK) == {"reason": "drained", "published": waiting}
    assert (outbox.left(), len(outbox.committed())) == (0, before + waiting)
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

    airflow.api.wait(is_well, timeout=PATIENCE, what="the verdict in the XCom")
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
    wait_until(lambda: gone(process), doing="the end of the process")
    assert airflow.api.wait_for_run("forever", run_id, timeout=PATIENCE) == "failed"
    airflow.api.clear("forever", run_id, TASK)
    airflow.api.wait_for_task("forever", run_id, TASK, "deferred", timeout=PATIENCE)
    process = published_by(airflow, outboxes["forever"])
    airflow.api.mark("forever", run_id, TASK, "success")
    wait_until(lambda: gone(process), doing="the end of the process")


def test_a_harvest_is_in_airflows_stats(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox], statsd: StatsdListener
) -> None:
    begun, outbox, before = time.monotonic(), outboxes["forever"], len(statsd.of("forever"))
    count = outbox.left() + 100
    run_id, process = start_harvest(airflow, outbox, "forever")

    def newest() -> dict[tuple[str, ...], Stat]:
        """The newest value by name and tags other than the outbox."""
        return {
            (stat.name, *(f"{label}={text}" for label, text in stat.tags if label != "outbox")): stat
            for stat in statsd.of("forever")[before:]
        }

    kinds = {
        metric.stats_name: "c" if metric.kind is MetricKind.COUNTER else "g"
        for metric in METRICS
        if metric.stats_name and not {"shard", "cluster"} & {*metric.labels}  # there is one of each
        if "positions" not in metric.stats_name  # nobody replicates any
    }
    unseen = {"outbox.fencings", "outbox.harvest_restarts"}  # nothing has happened

    def told() -> dict[str, str]:
        return {stat.name.removeprefix("airflow."): stat.kind for stat in statsd.of("forever")[before:]}

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
        are_all = sum(stat.value for stat in published()) == count
        return are_as_wanted and are_all and told().keys() >= kinds.keys() - unseen

    wait_until(is_told, doing=lambda: str(newest()))
    found = newest()
    assert {stat.tags for stat in published()} == {(("outbox", "forever"), ("topic", outbox.topic))}
    passed = time.monotonic() - begun  # nothing of all this has taken longer
    assert 0 < found["airflow.outbox.publish_latency", "quantile=0.99"].value <= passed
    assert 0 < found["airflow.outbox.batch_time", "quantile=0.5", "stage=commit"].value <= passed
    assert told().items() <= kinds.items()

    process.kill()
    wait_until(lambda: ("airflow.outbox.harvest_restarts",) in newest(), doing="the restart")
    airflow.api.mark("forever", run_id, TASK, "success")
    wait_for_the_end(airflow)


def test_a_sensor_fails_with_what_to_do(airflow: AirflowStandalone) -> None:
    run_id = start(airflow, "misconfigured")
    airflow.api.wait_for_task("misconfigured", run_id, TASK, "failed", timeout=PATIENCE)
    wait_for_log(airflow, "misconfigured", run_id, TASK, "Run `airflow-outbox init`")


def test_an_operator_stashes_and_returns_the_ticket(airflow: AirflowStandalone, outboxes: dict[str, Outbox]) -> None:
    outbox = outboxes["stashed"]
    [(before,)] = outbox.query("SELECT coalesce(max(id), 0) FROM stashed")
    run_id = start(airflow, "stash", topic=outbox.topic, version=0)
    airflow.api.wait_for_task("stash", run_id, "stash", "success", timeout=PATIENCE)
    ticket = airflow.api.xcom("stash", run_id, "stash")
    assert Ticket.parse(ticket).transaction_id > 0
    columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
    stashed = f"SELECT {columns} FROM stashed WHERE id > {before} ORDER BY id"
    rows = [("a", run_id, ["source"], ["stash"]), ("b", None, [], [])]
    assert outbox.query(stashed) == rows
    assert outbox.query(f"SELECT run FROM business WHERE run = '{run_id}'") == [(run_id,)]

    assert airflow.api.wait_for_run("stash", run_id, timeout=PATIENCE) == "success"
    airflow.api.clear("stash", run_id, "stash")
    airflow.api.wait(
        lambda: airflow.api.task("stash", run_id, "stash")["try_number"] == 2,
        timeout=PATIENCE,
        what="the second try",
    )
    airflow.api.wait_for_task("stash", run_id, "stash", "success", timeout=PATIENCE)
    assert airflow.api.xcom("stash", run_id, "stash") == ticket
    assert outbox.query(stashed) == rows


def test_a_watched_asset_harvests_while_its_dag_is_unpaused_and_starts_it(
    airflow: AirflowStandalone, outboxes: dict[str, Outbox]
) -> None:
    outbox = outboxes["watched"]
    expected = outbox.left() + 400

    def told() -> list[dict[str, Any]]:
        """The payloads of the runs that the asset has started, oldest first."""
        runs = [run["dag_run_id"] for run in airflow.api.runs("watching")]
        events = [event for run_id in runs for event in airflow.api.xcom("watching", run_id, "seen") or ()]
        return sorted(events, key=lambda event: event["at"])

    earlier = len(told())

    def count() -> int:
        return sum(event["payload"]["topics"][outbox.topic] for event in told()[earlier:])

    begun = time.monotonic()
    airflow.api.unpause("watching")
    process = published_by(airflow, outbox)
    for _ in range(30):
        outbox.stash(10)
    wait_until(lambda: outbox.left() == 0, doing="the harvest")
    airflow.api.wait(lambda: count() >= expected, timeout=PATIENCE, what=f"events of {expected} records")
    events, seconds = told()[earlier:], time.monotonic() - begun
    assert all(event["from_trigger"] and event["payload"]["outbox"] == "watched" for event in events)
    assert events[-1]["payload"]["published"] == sum(event["payload"]["topics"][outbox.topic] for event in events)
    assert len(events) <= seconds + 2, "more than one a second"

    airflow.api.pause("watching")
    wait_until(lambda: gone(process), doing="the end of the process")


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
    wait_until(lambda: gone(process), doing="the end of the process")

    assert any("task_id=harvest" in str(path) for path in files_with(airflow, ""))
    assert files_with(airflow, PASSWORD) == []
