"""What the benchmarks make of their measurements: medians, verdicts, tables, and the parts of a profile."""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import clusters, spark
from benchmarks.catching_up import CatchingUpResult
from benchmarks.model import calibrated_by_shards, predictions
from benchmarks.peers import streams
from benchmarks.peers.turns import Figures, TurnResult
from benchmarks.peers.verdicts import AT_LEAST_ONCE, EXACTLY_ONCE, summary
from benchmarks.profiling.timers import Timers
from benchmarks.scaled.relay import relayed
from benchmarks.scaled.sharded import part
from benchmarks.scaling import compared
from benchmarks.tables import tables


def figures(seconds: float, *, rate: int = 0, first: float = 0.1, peak_mb: float = 100.0) -> Figures:
    return Figures(
        seconds=seconds,
        records_per_second=rate,
        first_seconds=first,
        cpu_seconds=0.0,
        postgres_cpu_seconds=0.0,
        kafka_cpu_seconds=0.0,
        peak_mb=peak_mb,
        others_cores=0.0,
    )


def test_a_verdict_is_the_median_of_the_rounds_ratios() -> None:
    def result(contender: str, number: int, seconds: float) -> TurnResult:
        of_rate = figures(seconds, rate=round(1000 / seconds), first=seconds / 5, peak_mb=100 * seconds)
        return TurnResult(contender, "keys", number, 1000, of_rate)

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
    assert targets["exactly once (keys): at least 1 of bare loop (keys)"] == (0.9, False)
    assert targets["exactly once (keys): the first record within 0.24 s"] == (0.2, True)
    assert targets["exactly once (keys): at least 40 of goharvest (keys)"] == (20.0, False)
    assert targets["at least once (keys): at least 10 of goharvest (keys)"] == (None, None)
    assert targets["exactly once: memory under 200 MB"] == (150.0, True)
    written = [{"benchmark": "harvest", **line} for line in [*(result.as_line() for result in results), *lines]]
    rows = list(tables(written))
    assert "| bare loop | 1,111 (667 to 2,000) | 0.0 + 0.0 + 0.0 | 150 |" in rows
    assert "| at least once | none: of 1000 rows: 1 lost | – | – |" in rows
    assert "| bare loop | 0.90 (0.50 to 1.00) |" in rows
    assert "| exactly once (keys): at least 40 of goharvest (keys) | 20.0 | no |" in rows


def test_the_model_takes_the_costs_of_several_shards_near_the_servers() -> None:
    turn = {"measured": "shards", "shards": 2, "processes": 2, "records_per_second": 90_000}
    costs = {"harvester_us": 6.0, "postgres_us": 2.0, "kafka_us": 2.0}
    far = {"round_trip_ms": 20.0, "harvester_us": 60.0, "postgres_us": 60.0, "kafka_us": 60.0}
    lines = [{**turn, **costs}, {**turn, **far}, {**turn, **costs, "processes": 1, "harvester_us": 90.0}]
    [found] = calibrated_by_shards(lines)
    assert found.measured == 90_000
    [here, eight, more, *apart] = predictions(found, cores=2)
    assert (here["at_most"], here["measured_share"]) == (200_000, 0.45)
    assert [(line["cores"], line["at_most"], line["shards"]) for line in (eight, more)] == [
        (8, 800_000, 5),
        (32, 3_200_000, 20),
    ]
    bounds = {(line["shards"], line["postgres_cores"]): (line["at_most"], line["bound"]) for line in apart}
    assert bounds[4, 4] == (666_667, "harvester")
    assert bounds[16, 4] == (2_000_000, "postgres")


def test_the_table_of_what_spark_writes() -> None:
    """The lines that the benchmark makes of these seconds; the first write warms up."""
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


def test_a_stage_does_not_count_what_is_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: sum(passed), thread_time=lambda: 0.0, process_time=lambda: 0.0)
    monkeypatch.setattr("benchmarks.profiling.timers.time", clock)

    class Steps:
        def outer(self) -> None:
            passed.append(1.0)
            self.inner()

        def inner(self) -> None:
            passed.append(4.0)

    timers = Timers()
    timers.around(Steps, "outer", "outer")
    timers.around(Steps, "inner", "inner", inside="outer")
    Steps().outer()
    Steps().inner()
    totals = {stage: (wall, calls) for (_, stage), (wall, _, calls) in timers.reading().totals.items()}
    (outer, outer_calls), (inner, inner_calls) = totals["outer"], totals["inner"]
    assert (outer_calls, inner_calls) == (1, 1)
    assert outer == 1.0, "what is inside it counts, too"
    assert inner == 4.0, "what is outside counts, too"


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


def test_the_rate_of_a_sharded_turn_is_that_of_its_middle() -> None:
    changes = [
        (0.0, [0, 0]),
        (1.0, [0, 0]),
        (2.0, [100, 100]),
        (3.0, [900, 500]),
        (4.0, [950, 550]),
        (9.0, [1000, 1000]),
    ]
    assert part(changes) == (2.0, 4.0 + 5 * 100 / 500)


def test_bytes_come_later_through_a_relay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, relayed(server.getsockname()[1], seconds=0.1) as relay:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            client.sendall(b"there")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(10) == b"there"
                assert time.monotonic() - began >= 0.1
                accepted.sendall(b"and back")
            assert client.recv(10) == b"and back"
            assert time.monotonic() - began >= 0.2
            assert client.recv(10) == b""


def test_two_clusters_are_judged_by_the_median_of_the_rounds_ratios() -> None:
    def backlog(contender: str, number: int, rate: int) -> TurnResult:
        return TurnResult(contender, "keys", number, 1000, figures(1.0, rate=rate))

    def stream(contender: str, number: int, p50: float) -> streams.StreamResult:
        delays = streams.Delays(p50, 2 * p50, 3 * p50, 4 * p50)
        return streams.StreamResult(contender, 500.0, number, 500.0, 100, delays)

    one, two = clusters.ONE, clusters.TWO
    backlogs = [backlog(one, number, rate) for number, rate in ((1, 100), (2, 200), (3, 100))]
    backlogs += [backlog(two, number, rate) for number, rate in ((1, 80), (2, 120), (3, 75))]
    delays = [stream(one, 1, 8.0), stream(two, 1, 13.0), stream(one, 2, 8.0)]  # the second round has no pair
    caught_up = [CatchingUpResult(number, 100, 100, rate, 1.0, 2.0) for number, rate in ((1, 70), (2, 45), (3, 49))]
    *medians, rate, p50, share = clusters.summary(backlogs, delays, caught_up)
    assert [(line["contender"], line.get("records_per_second")) for line in medians[:2]] == [(one, 100), (two, 80)]
    assert (rate["measured"], rate["met"]) == (0.75, True)
    assert (p50["measured"], p50["met"]) == (1.625, False)
    assert (share["measured"], share["met"]) == (0.49, False)
    *_, rate, p50, share = clusters.summary([], [], [])
    assert [(line["measured"], line["met"]) for line in (rate, p50, share)] == [(None, None)] * 3


def test_the_lower_ratio_is_the_verdict() -> None:
    def result(records: int, *, first: float, seconds: float) -> TurnResult:
        return TurnResult("ours", "keys", 1, records, figures(seconds, first=first))

    few = [result(120_000, first=1.0, seconds=2.0)]
    verdict = compared("backlog", [result(1_020_000, first=1.0, seconds=13.5)], few)
    assert (verdict["ratio"], verdict["ratio_behind_first_batch"], verdict["met"]) == (1.259, 0.8, False)
    verdict = compared("backlog", [TurnResult("ours", "keys", 1, 1_020_000, refused="1 lost")], few)
    assert (verdict["ratio"], verdict["met"]) == (None, None)
