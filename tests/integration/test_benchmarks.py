"""The comparison with the peers counts what consumers see; whoever publishes wrongly, or too late, gets no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from benchmarks import catching_up, clusters
from benchmarks.peers import streams
from benchmarks.peers.contender import Turn
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.processes import Child
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers, Workspace
from benchmarks.peers.turns import measured
from benchmarks.profile import profile
from benchmarks.profiling.stages import DISK, STAGES
from benchmarks.scaled.generated import Generated
from benchmarks.scaled.many_topics import spread
from benchmarks.scaled.sharded import servers_far_away
from benchmarks.scaling import Line, backlog, bloat, memory, processes, shards, topics

ROWS = 2000
STREAM = streams.Stream(rate=100.0, transaction=5, seconds=1.0)
AGAIN = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT kafka_topic, kafka_key, kafka_value FROM outbox WHERE id = 17
"""
EXCHANGE = """
UPDATE outbox SET kafka_value = other.kafka_value FROM outbox AS other
WHERE (outbox.id, other.id) IN ((17, 18), (18, 17))
"""


@pytest.fixture
def bench(tmp_path: Path, postgres: EmbeddedPostgres, kafka: EmbeddedKafka) -> BenchServers:
    return BenchServers(tmp_path, postgres, kafka)


@pytest.mark.parametrize("settings", [{}, {"delivery": "at_least_once"}], ids=["exactly_once", "at_least_once"])
def test_a_turn_has_figures(bench: BenchServers, settings: dict[str, object]) -> None:
    rows = 20 * ROWS  # for longer than it takes to look twice at what processors do
    result = measured(bench, AirflowOutbox("ours", settings), SHAPES["keys"], rows=rows, number=1, patience=PATIENCE)
    assert result.refused is None
    assert result.figures is not None
    assert 0 < result.figures.first_seconds <= result.figures.seconds < PATIENCE
    assert result.figures.records_per_second == pytest.approx(rows / result.figures.seconds, rel=0.01)
    assert result.figures.cpu_seconds > 0
    assert result.figures.peak_mb > 20


@pytest.mark.parametrize(
    ("meddling", "fault"),
    [
        ("DELETE FROM outbox WHERE id = 17", "1 lost"),
        (AGAIN, "1 doubled"),
        (EXCHANGE, "1 disordered"),
    ],
)
def test_who_publishes_wrongly_gets_no_figure(bench: BenchServers, meddling: str, fault: str) -> None:
    contender = Meddling("meddling", meddling)
    result = measured(bench, contender, SHAPES["hot"], rows=100, number=1, patience=PATIENCE)
    assert result.figures is None
    assert result.refused == f"of 100 rows: {fault}"
    assert result.as_line()["refused"] == result.refused


@pytest.mark.long
def test_a_stream_has_delays(bench: BenchServers) -> None:
    result = streams.measured(bench, AirflowOutbox("ours"), STREAM, number=1)
    assert result.refused is None
    assert result.records == 100
    assert result.delays is not None
    assert 0 < result.delays.p50_ms <= result.delays.p90_ms <= result.delays.p99_ms <= result.delays.max_ms
    assert result.rate_kept > 0
    assert result.as_line()["p50_ms"] == result.delays.p50_ms


@pytest.mark.long
def test_who_does_not_keep_up_has_no_delays(bench: BenchServers) -> None:
    contender = Meddling("meddling", "UPDATE outbox_state SET paused = true")
    result = streams.measured(bench, contender, STREAM, number=1)
    assert result.delays is None
    assert result.refused == "it does not keep up: 400 of 400 records had not come in time"


class Meddling(AirflowOutbox):
    """This project over a table in which something is not what it was."""

    def __init__(self, name: str, meddling: str) -> None:
        super().__init__(name)
        self._meddling = meddling

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        with super().turn(workspace) as turn:
            yield _MeddlingTurn(turn, workspace.dsn, self._meddling)


class _MeddlingTurn(Turn):
    def __init__(self, turn: Turn, dsn: str, meddling: str) -> None:
        self._turn = turn
        self._dsn = dsn
        self._meddling = meddling

    def begin(self) -> Child:
        with psycopg.connect(self._dsn) as connection:
            assert connection.execute(self._meddling.encode()).rowcount > 0
        return self._turn.begin()

    def begun(self) -> float:
        return self._turn.begun()


def test_a_profile_has_all_stages_and_no_more_time_than_there_was(bench: BenchServers) -> None:
    lines, result = profile(bench, shape_name="keys", rows=ROWS)
    assert result.refused is None
    *parts, whole = lines
    stages = [line for line in parts if line["thread"] is not None]
    # Heartbeats come once a second, and whether rows are on Postgres' disk is seldom to be asked.
    assert {line["stage"] for line in stages} >= STAGES.keys() - {DISK, "account and watch"}
    for thread in {line["thread"] for line in stages}:
        assert sum(line["wall_seconds"] for line in stages if line["thread"] == thread) <= whole["wall_seconds"] + 0.01
    ours = [line for line in parts if line["stage"] not in ("Postgres", "Kafka")]
    assert sum(line["cpu_seconds"] for line in ours) == pytest.approx(whole["cpu_seconds"], abs=0.02)
    assert whole["wall_us_a_record"] == pytest.approx(1e6 * whole["wall_seconds"] / ROWS, rel=0.01)


@pytest.mark.long
def test_a_larger_backlog_is_held_against_a_small_one(bench: BenchServers) -> None:
    *turns, verdict = backlog(bench, few=100_000, many=400_000, rounds=2)
    assert [turn["records"] for turn in turns] == [100_000, 400_000, 100_000]
    assert_compared(turns, verdict)
    assert verdict["ratio_behind_first_batch"] > 0
    assert memory(turns)["peak_mb"] == max(turn["peak_mb"] for turn in turns) > 20


@pytest.mark.long
def test_dead_rows_stay_while_another_session_has_a_snapshot(bench: BenchServers) -> None:
    *turns, verdict = bloat(bench, before=30_000, rows=25_000, rounds=1)
    assert [(turn["contender"], turn["dead_rows"]) for turn in turns] == [("vacuumed", 0), ("bloated", 30_000)]
    assert_compared(turns, verdict)


@pytest.mark.long
def test_rows_for_many_topics_are_held_against_rows_for_one(bench: BenchServers) -> None:
    *turns, verdict = topics(bench, number=20, rows=ROWS, rounds=1)
    assert [(turn["topics"], turn["partitions"]) for turn in turns] == [(1, 4), (20, 20)]
    assert_compared(turns, verdict)


@pytest.mark.long
def test_shards_far_from_the_servers_are_held_against_one() -> None:
    with servers_far_away(0.02) as (bench, distance):
        assert distance.round_trip >= 0.02
        *turns, verdict = shards(bench, distance, targets={2: 1.2}, rows=ROWS, rounds=1)
    assert [(turn["shards"], turn["batch_records"], turn["records"]) for turn in turns] == [
        (1, 200, 2000),
        (2, 200, 4000),
    ]
    assert all(turn["round_trip_ms"] >= 20 and turn["connections"] <= 4 + turn["shards"] for turn in turns)
    assert all(0 < turn["records_per_second"] < 200 / 0.02 * turn["shards"] for turn in turns)
    assert verdict["ratio"] > 0


@pytest.mark.long
def test_shards_in_processes_are_held_against_one(bench: BenchServers) -> None:
    *turns, ratio = processes(bench, shards=2, rows=20 * ROWS, rounds=1)
    assert [(turn["shards"], turn["processes"], turn["refused"]) for turn in turns] == [(1, 1, None), (2, 2, None)]
    assert all(turn[name] > 0 for turn in turns for name in ("harvester_us", "postgres_us", "kafka_us"))
    assert ratio["ratio"] > 0


def test_rows_that_topics_lack_are_missed(bench: BenchServers, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(layout: Generated, dsn: str, *args: Any, **kwargs: Any) -> None:
        loaded(layout, dsn, *args, **kwargs)
        with psycopg.connect(dsn) as connection:
            connection.execute("DELETE FROM outbox WHERE id = 17")
            connection.execute(AGAIN.replace("17", "18"))

    loaded = Generated.load
    monkeypatch.setattr(Generated, "load", load)
    result = spread(bench, topics=3, rows=100, number=1)
    assert result.rate is None
    assert result.refused == "of 100 rows: 1 lost, 1 doubled, 0 disordered, 0 foreign"


def assert_compared(turns: Sequence[Line], verdict: Line) -> None:
    for turn in turns:
        assert turn.get("refused") is None
        assert turn["records_per_second"] == pytest.approx(turn["records"] / turn["seconds"], rel=0.01)
    assert verdict["ratio"] > 0
    assert verdict["met"] in (True, False)


@pytest.mark.long
def test_two_clusters_are_held_against_one(bench: BenchServers) -> None:
    given = clusters.arguments().parse_args([f"--rows={ROWS}", "--rate=100", "--seconds=1", "--rounds=1"])
    with clusters.other_cluster(bench) as other:
        contenders = [AirflowOutbox(clusters.ONE), clusters.TwoClusters(other)]
        found = [result.as_line() for result in clusters.results(bench, contenders, given)]
    assert [line.get("refused") for line in found] == [None] * 4
    assert [line["contender"] for line in found] == [clusters.ONE, clusters.TWO] * 2
    assert all(line["records_per_second"] > 0 for line in found[:2])
    assert all(line["p50_ms"] > 0 for line in found[2:])


@pytest.mark.long
def test_a_backlog_is_harvested_while_a_cluster_is_caught_up(bench: BenchServers) -> None:
    with clusters.other_cluster(bench) as other:
        two = clusters.TwoClusters(other)
        found = catching_up.measured(bench, two, rows=ROWS, number=1, patience=clusters.PATIENCE)
    assert found.before > 0
    assert found.meanwhile > 0
    assert found.caught_up_seconds > 0
