"""The comparison with the peers counts what consumers see; whoever publishes wrongly, or too late, gets no figure."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from benchmarks import spark
from benchmarks.peers import streams
from benchmarks.peers.contender import Turn
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.processes import Child
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers, Workspace
from benchmarks.peers.turns import Figures, TurnResult, measured
from benchmarks.peers.verdicts import AT_LEAST_ONCE, EXACTLY_ONCE, summary
from benchmarks.profile import profile
from benchmarks.profiling.stages import DISK, STAGES
from benchmarks.profiling.timers import Timers
from benchmarks.scaled.generated import Generated
from benchmarks.scaled.many_topics import spread
from benchmarks.scaling import Line, backlog, bloat, compared, memory, topics
from benchmarks.tables import tables

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
    result = measured(bench, AirflowOutbox("ours", settings), SHAPES["keys"], rows=rows, number=1, patience=20)
    assert result.refused is None
    assert result.figures is not None
    assert 0 < result.figures.first_seconds <= result.figures.seconds < 20
    assert result.figures.records_per_second == pytest.approx(rows / result.figures.seconds, rel=0.01)
    assert result.figures.cpu_seconds > 0
    assert 20 < result.figures.peak_mb < 400


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
    result = measured(bench, contender, SHAPES["hot"], rows=100, number=1, patience=3)
    assert result.figures is None
    assert result.refused == f"of 100 rows: {fault}"
    assert result.as_line()["refused"] == result.refused


@pytest.mark.long
def test_a_stream_has_delays(bench: BenchServers) -> None:
    result = streams.measured(bench, AirflowOutbox("ours"), STREAM, number=1)
    assert result.refused is None
    assert result.records == 100
    assert result.delays is not None
    assert 0 < result.delays.p50_ms <= result.delays.p90_ms <= result.delays.p99_ms <= result.delays.max_ms < 5000
    assert result.rate_kept == pytest.approx(100, rel=0.2)
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


def test_a_verdict_is_the_median_of_the_rounds_ratios() -> None:
    def result(contender: str, number: int, seconds: float) -> TurnResult:
        figures = Figures(
            seconds=seconds,
            records_per_second=round(1000 / seconds),
            first_seconds=0.0,
            cpu_seconds=0.0,
            postgres_cpu_seconds=0.0,
            kafka_cpu_seconds=0.0,
            peak_mb=100 * seconds,
            others_cores=0.0,
        )
        return TurnResult(contender, "keys", number, 1000, figures)

    results = [result(EXACTLY_ONCE, number, seconds) for number, seconds in ((1, 1.0), (2, 1.5), (3, 1.0))]
    results += [result("bare loop", number, seconds) for number, seconds in ((1, 0.9), (2, 1.5), (3, 0.5))]
    results += [
        result("goharvest", 1, 20.0),
        TurnResult(AT_LEAST_ONCE, "keys", 1, 1000, refused="of 1000 rows: 1 lost"),
    ]
    lines = list(summary(results))
    ratio = next(line for line in lines if line["summary"] == "ratio" and line["over"] == "bare loop")
    assert (ratio["median"], ratio["lowest"], ratio["highest"]) == (0.9, 0.5, 1.0)
    targets = {line["target"]: (line["measured"], line["met"]) for line in lines if line["summary"] == "target"}
    assert targets["exactly once (keys): at least 0.8 of bare loop (keys)"] == (0.9, True)
    assert targets["exactly once (keys): at least 40 of goharvest (keys)"] == (20.0, False)
    assert targets["at least once (keys): at least 10 of goharvest (keys)"] == (None, None)
    assert targets["exactly once: memory under 200 MB"] == (150.0, True)
    written = [{"benchmark": "harvest", **line} for line in [*(result.as_line() for result in results), *lines]]
    rows = list(tables(written))
    assert "| bare loop | 1,111 (667 to 2,000) | 0.0 + 0.0 + 0.0 | 150 |" in rows
    assert "| at least once | none: of 1000 rows: 1 lost | – | – |" in rows
    assert "| bare loop | 0.90 (0.50 to 1.00) |" in rows
    assert "| exactly once (keys): at least 40 of goharvest (keys) | 20.0 | no |" in rows


def test_the_table_of_what_spark_writes() -> None:
    """Of the lines that the benchmark makes of these seconds; the first write warms up."""
    seconds = {"psql": [1.0, 1.0], "outbox": [9.0, 2.0, 4.0], "ordered": [5.0, 5.0]}
    writes = {name: partial(next, iter(times)) for name, times in seconds.items()}
    bench: Any = SimpleNamespace(rows=1000, make_text=lambda: None, timed=lambda write: (write(), 100.4), **writes)
    assert list(tables(spark.run(bench, rounds=2, with_jdbc=False))) == [
        "",
        "| 1,000 rows | rows/s: median (lowest to highest) | of `psql`'s `COPY` | peak MiB |",
        "| --- | --- | --- | --- |",
        "| psql copy | 1,000 (1,000 to 1,000) | 1.00 | – |",
        "| outbox | 333 (250 to 500) | 0.33 | 100 |",
        "| outbox, orderBy | 200 (200 to 200) | 0.20 | 100 |",
        "",
    ]


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


def test_a_stage_does_not_count_what_is_inside_it() -> None:
    class Steps:
        def outer(self) -> None:
            time.sleep(0.1)
            self.inner()

        def inner(self) -> None:
            time.sleep(0.3)

    timers = Timers()
    timers.around(Steps, "outer", "outer")
    timers.around(Steps, "inner", "inner", inside="outer")
    Steps().outer()
    Steps().inner()
    totals = {stage: (wall, calls) for (_, stage), (wall, _, calls) in timers.reading().totals.items()}
    assert totals["outer"] == (pytest.approx(0.1, abs=0.05), 1)
    assert totals["inner"] == (pytest.approx(0.3, abs=0.05), 1)


def test_a_thread_that_has_ended_is_not_counted() -> None:
    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def call(_: int) -> None:
        names.append(threading.current_thread().name)

    names: list[str] = []
    thread, c = ctypes.c_ulong(), ctypes.CDLL(None)
    c.pthread_create(ctypes.byref(thread), None, call, None)
    c.pthread_join(thread, None)
    assert names[0] in {each.name for each in threading.enumerate()}  # Python does not know that it has ended
    threads = Timers().reading().threads
    assert names[0] not in threads
    assert threads[threading.current_thread().name] > 0


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


def test_the_lower_ratio_is_the_verdict() -> None:
    def result(records: int, *, first: float, seconds: float) -> TurnResult:
        figures = Figures(
            seconds=seconds,
            records_per_second=0,
            first_seconds=first,
            cpu_seconds=0.0,
            postgres_cpu_seconds=0.0,
            kafka_cpu_seconds=0.0,
            peak_mb=100.0,
            others_cores=0.0,
        )
        return TurnResult("ours", "keys", 1, records, figures)

    few = [result(120_000, first=1.0, seconds=2.0)]
    verdict = compared("backlog", [result(1_020_000, first=1.0, seconds=13.5)], few)
    assert (verdict["ratio"], verdict["ratio_behind_first_batch"], verdict["met"]) == (1.259, 0.8, False)
    verdict = compared("backlog", [TurnResult("ours", "keys", 1, 1_020_000, refused="1 lost")], few)
    assert (verdict["ratio"], verdict["met"]) == (None, None)
