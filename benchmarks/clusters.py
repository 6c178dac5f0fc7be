"""Publishing to two clusters, beside publishing to one of them: how fast a backlog gets out, and how soon a record.

Two brokers and Postgres run on this machine; each broker is a cluster of its own. In turns, a harvester publishes the
same backlog, and then the same stream of small transactions, to one cluster or to both. The order changes from round to
round. What `./dev bench harvest` and `./dev bench latency` say of turns, times and judges holds here, too. Where
there are two clusters, consumers read the backup, which has each batch last.

At last, a harvester publishes the backlog while the backup gets what it has missed (`catching_up`).

Lines of JSON: one a turn; medians; the three targets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from benchmarks import catching_up
from benchmarks.catching_up import LEAST_SHARE, CatchingUpResult
from benchmarks.peers import streams, turns
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import JARS, KAFKA_HEAP, PARTITIONS, BenchServers, Workspace
from benchmarks.peers.streams import Stream, StreamResult
from benchmarks.peers.surroundings import surroundings
from benchmarks.peers.turns import TurnResult

ONE: Final = "one cluster"
TWO: Final = "two clusters"
LEAST_RATE, MOST_P50 = 0.7, 1.5
"""The targets: of one cluster's throughput, and times one cluster's p50."""
PARTS: Final = ("sides", "catching-up")
WARM_UP_ROWS = 20_000
WARM_UP_SECONDS = 30.0
PATIENCE = 60.0


class TwoClusters(AirflowOutbox):
    """This project, publishing to another broker first, and then to the one at which consumers read."""

    def __init__(self, first: EmbeddedKafka) -> None:
        super().__init__(TWO)
        self._first = first
        self.brokers = [first.pid]

    def made(self, workspace: Workspace) -> Path:
        replace(workspace, bootstrap=self._first.bootstrap).make_topic(workspace.topic, partitions=PARTITIONS)
        return super().made(workspace)

    def servers(self, workspace: Workspace) -> Mapping[str, object]:
        return {
            "data_source": workspace.dsn,
            "clusters": {
                "primary": {"bootstrap.servers": self._first.bootstrap},
                "backup": {"bootstrap.servers": workspace.bootstrap},
            },
        }


def say(text: str) -> None:
    print(f"bench clusters: {text}", file=sys.stderr, flush=True)


def tell(line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": "clusters", **line}), flush=True)


def main() -> None:
    given = arguments().parse_args()
    backlogs: list[TurnResult] = []
    delays: list[StreamResult] = []
    caught_up: list[CatchingUpResult] = []
    with BenchServers.started() as bench, other_cluster(bench) as other:
        tell({"surroundings": surroundings(bench.postgres.dsn()), "rows": given.rows, "seconds": given.seconds})
        two = TwoClusters(other)
        for result in results(bench, [AirflowOutbox(ONE), two], given) if "sides" in given.parts else ():
            if isinstance(result, TurnResult):
                backlogs.append(result)
                speed = f"{result.figures.records_per_second:,} records/s" if result.figures else result.refused
            else:
                delays.append(result)
                speed = f"p50 {result.delays.p50_ms} ms" if result.delays else result.refused
            tell(result.as_line())
            say(f"round {result.round}: {result.contender}: {speed}")
        for number in range(1, given.rounds + 1) if "catching-up" in given.parts else ():
            turn = catching_up.measured(bench, two, rows=given.rows, number=number, patience=PATIENCE)
            caught_up.append(turn)
            tell(turn.as_line())
            say(f"round {number}: {turn.meanwhile:,} records/s while the backup is caught up, {turn.before:,} before")
    for line in summary(backlogs, delays, caught_up):
        tell(line)


def other_cluster(bench: BenchServers) -> EmbeddedKafka:
    """Return another broker like the first one, not started."""
    return EmbeddedKafka(bench.folder / "other", classpath=kafka_jars(JARS), heap=KAFKA_HEAP)


def results(
    bench: BenchServers, contenders: Sequence[AirflowOutbox], given: argparse.Namespace
) -> Iterator[TurnResult | StreamResult]:
    """All results, as they come. Each contender first has turns that do not count, twice: the second broker takes part
    in half of them, and a cold one takes three times the processor time of a warm one.
    """
    stream = Stream(given.rate, given.transaction, given.seconds)
    for contender in (*contenders, *contenders):
        say(f"warming up: {contender.name}")
        few = min(given.rows, WARM_UP_ROWS)
        turns.measured(bench, contender, SHAPES["keys"], rows=few, number=0, patience=PATIENCE)
        warm_up = replace(stream, seconds=min(given.seconds, WARM_UP_SECONDS))
        streams.measured(bench, contender, warm_up, number=0)
    for number in range(1, given.rounds + 1):
        in_turn = contenders if number % 2 else contenders[::-1]
        for contender in in_turn:
            yield turns.measured(bench, contender, SHAPES["keys"], rows=given.rows, number=number, patience=PATIENCE)
        for contender in in_turn:
            yield streams.measured(bench, contender, stream, number=number)


def summary(
    backlogs: Sequence[TurnResult], delays: Sequence[StreamResult], caught_up: Sequence[CatchingUpResult]
) -> Iterator[dict[str, Any]]:
    """Medians of both, and whether the targets are met: by the median of the rounds' ratios."""
    rates = _by_round(
        (each.contender, each.round, each.figures.records_per_second) for each in backlogs if each.figures
    )
    p50s = _by_round((each.contender, each.round, each.delays.p50_ms) for each in delays if each.delays)
    for name, found in (("records_per_second", rates), ("p50_ms", p50s)):
        for contender, values in found.items():
            yield {"summary": "median", "contender": contender, name: statistics.median(values.values())}
    rate, p50 = _ratio(rates), _ratio(p50s)
    target = f"{TWO}: at least {LEAST_RATE} of the throughput of {ONE}"
    yield _target(target, rate, met=None if rate is None else rate >= LEAST_RATE)
    target = f"{TWO}: p50 at most {MOST_P50} times that of {ONE}"
    yield _target(target, p50, met=None if p50 is None else p50 <= MOST_P50)
    share = round(statistics.median(turn.share for turn in caught_up), 3) if caught_up else None
    target = f"while the backup is caught up: at least {LEAST_SHARE} of the throughput before"
    yield _target(target, share, met=None if share is None else share >= LEAST_SHARE)


def _by_round(found: Iterator[tuple[str, int, float]]) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for contender, number, value in found:
        values.setdefault(contender, {})[number] = value
    return values


def _ratio(values: dict[str, dict[int, float]]) -> float | None:
    """The median of two clusters' values over one's, round by round; None: no round has both."""
    one, two = values.get(ONE, {}), values.get(TWO, {})
    both = [two[number] / one[number] for number in one.keys() & two.keys()]
    return round(statistics.median(both), 3) if both else None


def _target(target: str, measured: float | None, *, met: bool | None) -> dict[str, Any]:
    """`met` is null where nothing was measured."""
    return {"summary": "target", "target": target, "measured": measured, "met": met}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench clusters", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="the rows of a backlog (default: 200000)")
    parser.add_argument("--rate", type=float, default=500.0, help="a stream's records a second (default: 500)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long a stream is (default: 30)")
    parser.add_argument("--transaction", type=int, default=5, help="records a transaction (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each has its turns (default: 5)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    return parser


if __name__ == "__main__":
    main()
