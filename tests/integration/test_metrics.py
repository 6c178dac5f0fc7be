"""`airflow-outbox harvest --metrics-port`: real numbers of a real harvest, health, and who may ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.harvesting import CALM, PATIENCE, Outbox, Process, wait_until
from support.leading import Leader
from support.served import Served

from airflow_outbox.values.fence import LedgerPosition
from airflow_outbox.values.metrics import METRICS, Stage
from airflow_outbox.values.records import Snapshot

Start = Callable[..., Process]


@pytest.fixture
def serve(start: Start) -> Callable[..., Served]:
    return lambda *arguments, **settings: Served(
        start("--metrics-port", "0", *arguments, **{"limits": CALM, **settings})
    )


def test_a_harvest_is_measured(outbox: Outbox, serve: Callable[..., Served]) -> None:
    begun = time.time()
    served = serve()
    outbox.stash(3000)
    wait_until(lambda: outbox.left() == 0)
    wait_until(served.is_healthy)
    expected = {
        "airflow_outbox_verdict state=healthy": 1,
        "airflow_outbox_verdict state=stalled": 0,
        "airflow_outbox_backlog_records": 0,
        "airflow_outbox_backlog_is_exact": 1,
        "airflow_outbox_oldest_age_seconds": 0,
        "airflow_outbox_parked_records cause=headers": 0,
        "airflow_outbox_in_flight_records": 0,
        "airflow_outbox_leading": 1,
        f"airflow_outbox_published_records_total topic={outbox.topic}": 3000,
        "airflow_outbox_publish_latency_seconds_count": 3000,
        "airflow_outbox_fencings_total": 0,
    }
    found: dict[str, float] = {}

    def seen() -> dict[str, float | None]:
        found.clear()
        found.update(served.metrics())
        return {name: found.get(name) for name in expected}

    def told(event: str) -> list[dict[str, Any]]:
        return [each for each in served.process.events if each["event"] == event]

    def are_events_counted() -> bool:
        elections, take_over = found["airflow_outbox_elections_total"], found["airflow_outbox_take_over_seconds"]
        return elections == len(told("elected")) >= 1 and take_over == told("took_over")[-1]["seconds"]

    wait_until(lambda: seen() == expected and are_events_counted(), doing=lambda: str(seen()))
    passed = time.time() - begun  # nothing of all this has taken longer
    assert 0 < found["airflow_outbox_publish_latency_seconds quantile=0.5"] <= passed
    assert found["airflow_outbox_publish_latency_seconds_sum"] > 0
    for stage in Stage:
        assert found[f"airflow_outbox_batch_seconds_count stage={stage}"] > 0
        assert 0 < found[f"airflow_outbox_batch_seconds quantile=0.99 stage={stage}"] <= passed
    assert 0 < found["airflow_outbox_take_over_seconds"] <= passed
    assert 0 <= found["airflow_outbox_leader_silence_seconds"] <= passed
    of_several = {metric.name for metric in METRICS if {"shard", "cluster"} & {*metric.labels}}  # there is one of each
    of_positions = {metric.name for metric in METRICS if metric.name.startswith("airflow_outbox_positions")}
    assert {name.split()[0] for name in found} >= {
        metric.name for metric in METRICS if metric.name
    } - of_several - of_positions - {
        "airflow_outbox_publish_latency_seconds",
        "airflow_outbox_batch_seconds",
    }


def test_what_waits_and_what_is_parked(outbox: Outbox, serve: Callable[..., Served]) -> None:
    served = serve()
    served.process.wait_for("took_over")
    outbox.stash(20)
    wait_until(lambda: outbox.left() == 0)
    outbox.query("UPDATE outbox_state SET paused = true")
    served.process.wait_for("progress", paused=True)
    outbox.stash(7)
    outbox.query("UPDATE outbox SET create_time = now() - interval '1 hour'")
    outbox.query("UPDATE outbox SET kafka_header_values = ARRAY[]::text[] WHERE kafka_value = '3'")
    found: dict[str, float] = {}

    def says(**values: float) -> bool:
        found.clear()
        found.update(served.metrics())
        return all(found.get(f"airflow_outbox_{name}") == value for name, value in values.items())

    oldest = "airflow_outbox_oldest_age_seconds"
    wait_until(lambda: says(**{"backlog_records": 7, "verdict state=paused": 1}) and found[oldest] >= 3600)
    assert found[oldest] < 3600 + 2 * PATIENCE
    wait_until(served.is_healthy)
    outbox.query("UPDATE outbox_state SET paused = false")
    expected = {"parked_records cause=headers": 1, "backlog_records": 0, "verdict state=lagging": 1}
    expected[f"published_records_total topic={outbox.topic}"] = 26
    wait_until(lambda: says(**expected), doing=lambda: str(found))
    assert found["airflow_outbox_publish_latency_seconds_sum"] > 6 * 3600, "they were stashed an hour ago"


def test_at_least_once_measures_what_it_knows(outbox: Outbox, serve: Callable[..., Served]) -> None:
    begun = time.time()
    served = serve(delivery="at_least_once")
    outbox.stash(1000)
    wait_until(lambda: outbox.left() == 0)
    found: dict[str, float] = {}

    def are_counted() -> bool:
        found.update(served.metrics())
        return found.get("airflow_outbox_publish_latency_seconds_count") == 1000

    wait_until(are_counted)
    counts = {stage: found[f"airflow_outbox_batch_seconds_count stage={stage}"] for stage in Stage}
    assert {stage for stage, count in counts.items() if count} == {Stage.READ, Stage.PURGE}
    passed = time.time() - begun  # nothing of all this has taken longer
    assert 0 < found["airflow_outbox_publish_latency_seconds quantile=0.5"] <= passed


def test_a_standby_tells_the_same_of_the_outbox(outbox: Outbox, serve: Callable[..., Served]) -> None:
    leader = serve()
    leader.process.wait_for("took_over")
    standby = serve()
    wait_until(lambda: standby.process.newest_progress.get("standing") == "standby")
    outbox.stash(100)
    wait_until(lambda: outbox.left() == 0)
    healths: list[tuple[int, Any]] = []

    def agree() -> bool:
        healths[:] = [(status, told["cause"]) for status, told in (leader.health(), standby.health())]
        return healths[0] == healths[1] and healths[0][0] == 200

    wait_until(agree, doing=lambda: str(healths))
    wait_until(lambda: leader.metrics().get("airflow_outbox_leading") == 1)
    found: dict[str, float] = {}

    def is_told() -> bool:
        found.clear()
        found.update(standby.metrics())
        return "airflow_outbox_leading" in found

    wait_until(is_told)
    assert found["airflow_outbox_leading"] == 0
    assert "airflow_outbox_take_over_seconds" not in found
    assert not [name for name in found if name.startswith("airflow_outbox_published")]


def test_health_is_what_the_verdict_says(outbox: Outbox, serve: Callable[..., Served]) -> None:
    served = serve()
    wait_until(served.is_healthy)
    wait_until(served.is_live)
    outbox.query("UPDATE outbox_state SET halted = 'the ledger is older'")
    answers: list[tuple[int, dict[str, Any]]] = []

    def is_halted() -> bool:
        answers.append(served.health())
        return bool(answers[-1][1]["state"] == "halted")

    wait_until(is_halted)
    status, verdict = answers[-1]
    assert status == 503
    assert "the ledger is older" in verdict["cause"]
    assert "airflow-outbox adopt" in verdict["remedy"]
    wait_until(lambda: served.metrics().get("airflow_outbox_verdict state=halted") == 1)
    wait_until(served.is_live)
    served.process.wait_for("verdict", state="halted")


def test_only_this_machine_may_ask_unless_it_is_told_otherwise(outbox: Outbox, serve: Callable[..., Served]) -> None:
    elsewhere = "127.0.0.2"  # another address of this machine
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((elsewhere, serve().port))
    socket.create_connection((elsewhere, serve("--metrics-host", "0.0.0.0").port)).close()


def test_a_port_that_is_taken_ends_the_command_with_what_to_do(outbox: Outbox, start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--metrics-port", str(taken.getsockname()[1]))
        process.ends()
        assert process.popen.returncode == 1


def test_the_age_of_a_batch_is_that_of_the_record_in_its_middle(leader: Leader) -> None:
    ((snapshot,),) = _stash(leader, seconds=(5000, 500, 50))
    purged = leader.table.windows.purge_published(leader.view, [1, 2, 3], Snapshot.parse(snapshot))
    assert purged.age == pytest.approx(500, abs=100)
    assert purged.flushed > 0
    assert leader.table.windows.purge_published(leader.view, [1, 2, 3], Snapshot.parse(snapshot)).age is None, (
        "they are gone"
    )
    assert leader.table.windows.purge_published(leader.view, [], Snapshot.parse(snapshot)).age is None


@pytest.mark.parametrize(("time", "age"), [("'infinity'", None), ("now() + interval '1 h'", 0.0)])
def test_a_time_that_says_nothing_is_no_age(leader: Leader, time: str, age: float | None) -> None:
    ((snapshot,),) = _stash(leader, seconds=(0,))
    leader.connection.execute(f"UPDATE outbox SET create_time = {time}".encode())
    assert leader.table.windows.purge_published(leader.view, [1], Snapshot.parse(snapshot)).age == age


def test_the_age_of_records_published_at_least_once(leader: Leader) -> None:
    leader.table.begin(leader.view, delivery="at_least_once", witness=LedgerPosition())
    _stash(leader, seconds=(5000, 500, 50))
    marked = leader.table.marks.mark(leader.view, max_records=10, max_bytes=1_000_000)
    assert leader.table.marks.purge(leader.view, [record.id for record in marked]) == pytest.approx(500, abs=100)


def _stash(leader: Leader, *, seconds: tuple[int, ...]) -> list[tuple[str]]:
    """Stash records so many seconds ago; return a snapshot that sees them."""
    leader.stash(len(seconds))
    for number, ago in enumerate(seconds, start=1):
        leader.connection.execute(
            "UPDATE outbox SET create_time = now() - make_interval(secs => %s) WHERE id = %s", [ago, number]
        )
    return leader.connection.execute("SELECT pg_current_snapshot()::text").fetchall()
