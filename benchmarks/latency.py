"""How soon after its commit consumers see a record, beside the peers, and what waiting for one costs.

*Latency*: in turns, on the same servers, each contender publishes a stream of small transactions. A writer commits them
at a rate, in a process of its own. A consumer that reads committed notes, in another, when it sees each record. Both
read the clock that all processes of the machine share. A record's delay is from the moment at which the writer knew
that its transaction was committed. A contender that has not published everything three seconds after the last commit
does not keep up, and gets no figure.

*Idle*: the resources that each contender's process uses while nothing comes, and its requests to Postgres.

Lines of JSON: who is measured and who is not; one a turn; the targets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers import idle, streams, verdicts
from benchmarks.peers.chosen import Absent, add_options, for_a_stream
from benchmarks.peers.contender import Contender
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.streams import Stream, StreamResult
from benchmarks.peers.surroundings import surroundings

GENTLE_RATE = 500.0
MOST_MS = {GENTLE_RATE: {"p50": 7.0, "p99": 20.0}, 5000.0: {"p99": 40.0}}
"""The targets, by rate."""
MOST_IDLE_PERCENT = 2.0
WARM_UP_SECONDS, WARM_UPS = 30.0, 2
"""Kafka's Java process is at full speed after about a minute of transactions."""
RIVALS = (verdicts.GOHARVEST, verdicts.DEBEZIUM_TUNED, verdicts.DEBEZIUM_EXACTLY_ONCE)


def say(text: str) -> None:
    print(f"bench latency: {text}", file=sys.stderr, flush=True)


def tell(line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": "latency", **line}), flush=True)


def main() -> None:
    given = arguments().parse_args()
    found = list(for_a_stream(given))
    chosen = [contender for contender in found if isinstance(contender, Contender)]
    results: list[StreamResult] = []
    idles: dict[str, float] = {}
    with BenchServers.started(idle.SETTINGS) as bench:
        tell(
            {
                "surroundings": surroundings(bench.postgres.dsn()),
                "seconds": given.seconds,
                "transaction": given.transaction,
            }
        )
        for contender in found:
            if isinstance(contender, Absent):
                say(f"not measured: {contender.name} because {contender.reason}")
                tell({"not_measured": contender.name, "because": contender.reason})
            else:
                tell({"contender": contender.name, "settings": contender.settings, "wakes": contender.wakes})
        for result in _rounds(bench, chosen, given):
            results.append(result)
            tell({"measured": "latency", **result.as_line()})
            words = f"p50 {result.delays.p50_ms} ms, p99 {result.delays.p99_ms} ms" if result.delays else result.refused
            say(f"round {result.round}, {result.rate:g} records/s: {result.contender}: {words}")
        for contender in chosen if given.idle else []:
            waited = idle.measured(bench, contender, seconds=given.idle)
            if isinstance(waited, str):
                tell({"measured": "idle", "contender": contender.name, "refused": waited})
                say(f"idle: {contender.name}: {waited}")
                continue
            idles[contender.name] = waited.cpu_percent
            tell(waited.as_line())
            say(
                f"idle: {contender.name}: {waited.cpu_percent} % of a core, {waited.statements_per_second} statements/s"
            )
    for line in summary(results, idles):
        tell(line)


def _rounds(bench: BenchServers, chosen: Sequence[Contender], given: argparse.Namespace) -> Iterator[StreamResult]:
    """All results, as they come. Each contender first has turns that do not count."""
    gentle = Stream(GENTLE_RATE, given.transaction, min(given.seconds, WARM_UP_SECONDS))
    for contender in [*chosen] * WARM_UPS:
        say(f"warming up: {contender.name}")
        streams.measured(bench, contender, gentle, number=0)
    for number in range(1, given.rounds + 1):
        for rate in given.rates:
            first = (number - 1) % len(chosen)
            for contender in [*chosen[first:], *chosen[:first]]:
                stream = Stream(rate, given.transaction, given.seconds)
                yield streams.measured(bench, contender, stream, number=number)


def summary(results: Sequence[StreamResult], idles: dict[str, float]) -> Iterator[dict[str, Any]]:
    """The targets, by the medians of the rounds."""
    p50, p99 = _medians(results, "p50_ms"), _medians(results, "p99_ms")
    rates = sorted({result.rate for result in results})
    for ours in verdicts.OURS:
        for rate in rates:
            if (ours, rate) not in p50:
                yield _target(f"{ours}, {rate:g} records/s: keeps up", None, met=False)
                continue
            for name, most in MOST_MS.get(rate, {}).items():
                measured = {"p50": p50, "p99": p99}[name][ours, rate]
                yield _target(f"{ours}, {rate:g} records/s: {name} under {most:g} ms", measured, met=measured < most)
            for rival in RIVALS:
                for name, found in (("p50", p50), ("p99", p99)):
                    text = f"{ours}, {rate:g} records/s: {name} below that of {rival}"
                    if (rival, rate) in found:
                        yield _target(text, found[ours, rate], met=found[ours, rate] < found[rival, rate])
                    else:
                        yield _target(f"{text}, which has no figure", found[ours, rate], met=None)
        if ours in idles:
            text = f"{ours}: under {MOST_IDLE_PERCENT:g} % of a core while nothing comes"
            yield _target(text, idles[ours], met=idles[ours] < MOST_IDLE_PERCENT)


def _medians(results: Sequence[StreamResult], name: str) -> dict[tuple[str, float], float]:
    found: dict[tuple[str, float], list[float]] = {}
    for result in results:
        if result.delays is not None:
            found.setdefault((result.contender, result.rate), []).append(getattr(result.delays, name))
    return {side: statistics.median(values) for side, values in found.items()}


def _target(target: str, measured: float | None, *, met: bool | None) -> dict[str, Any]:
    """`met` is null where a rival has no figure."""
    return {"summary": "target", "target": target, "measured": measured, "met": met}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench latency", description=__doc__)
    parser.add_argument("--rates", type=_rates, default=[500.0, 5000.0], help="records a second (default: 500,5000)")
    parser.add_argument("--seconds", type=float, default=30, help="how long a turn's stream is (default: 30)")
    parser.add_argument("--transaction", type=int, default=5, help="records a transaction (default: 5)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each contender has its turn (default: 1)")
    parser.add_argument(
        "--idle", type=float, default=20, help="seconds without records; 0: don't measure (default: 20)"
    )
    add_options(parser)
    return parser


def _rates(text: str) -> list[float]:
    return [float(rate) for rate in text.split(",")]


if __name__ == "__main__":
    main()
