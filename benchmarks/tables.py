"""Write the results of `./dev bench harvest`, `latency` and `spark` as the tables of docs/performance.md.

Their lines of JSON are read from files, or from stdin. Figures taken while the rest of the machine was busy are marked:
they say little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
BUSY_CORES = 0.15
"""How many cores others may keep busy while a figure is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench tables", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="what the benchmarks printed")
    given = parser.parse_args()
    texts = [file.read_text() for file in given.files] or [sys.stdin.read()]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    for row in tables(lines):
        print(row)


def tables(lines: Sequence[Line]) -> Iterator[str]:
    """The rows of all tables, with empty ones between."""
    for name, written in (("harvest", _harvest), ("latency", _latency), ("spark", _spark)):
        own = [line for line in lines if line["benchmark"] == name]
        if own:
            yield from written(own)
            targets = [line for line in own if line.get("summary") == "target"]
            if targets:
                yield from _table(["target", "measured", "met"], ([*_target(line)] for line in targets))


def _harvest(lines: Sequence[Line]) -> Iterator[str]:
    turns = [line for line in lines if "round" in line]
    shapes = _distinct(line["shape"] for line in turns)
    contenders = _distinct(line["contender"] for line in turns)
    yield from _surroundings(lines)
    yield from _table(
        ["records/s: median (lowest to highest)", *(f"`{shape}`" for shape in shapes), "processor s", "peak MB"],
        (
            [
                contender,
                *(_rates(_of(turns, contender, shape)) for shape in shapes),
                _used(_of(turns, contender, shapes[0])),
                _most(line.get("peak_mb") for line in turns if line["contender"] == contender),
            ]
            for contender in contenders
        ),
    )
    ratios = [line for line in lines if line.get("summary") == "ratio"]
    for ours in _distinct(line["contender"] for line in ratios):
        own = [line for line in ratios if line["contender"] == ours]
        yield from _table(
            [f"{ours} is as fast as …, times", *(f"`{shape}`" for shape in shapes)],
            (
                [over, *(_ratio(own, over, shape) for shape in shapes)]
                for over in _distinct(line["over"] for line in own)
            ),
        )


def _latency(lines: Sequence[Line]) -> Iterator[str]:
    turns = [line for line in lines if line.get("measured") == "latency"]
    rates = _distinct(line["rate"] for line in turns)
    yield from _surroundings(lines)
    yield from _table(
        ["p50 / p90 / p99 / most, ms", *(f"{rate:,g} records/s" for rate in rates)],
        (
            [contender, *(_delays([line for line in turns if _is(line, contender, rate)]) for rate in rates)]
            for contender in _distinct(line["contender"] for line in turns)
        ),
    )
    idle = [line for line in lines if line.get("measured") == "idle" and "refused" not in line]
    yield from _table(
        ["while nothing comes", "% of a core", "Postgres, %", "Kafka, %", "statements/s"],
        (
            [
                line["contender"] + _mark([line]),
                *(f"{line[name]:g}" for name in ("cpu_percent", "postgres_cpu_percent", "kafka_cpu_percent")),
                f"{line['statements_per_second']:g}",
            ]
            for line in idle
        ),
    )


def _spark(lines: Sequence[Line]) -> Iterator[str]:
    paths = [line for line in lines if "path" in line]
    yield from _surroundings(lines)
    for rows in _distinct(line["rows"] for line in paths):
        own = [line for line in paths if line["rows"] == rows]
        yield from _table(
            [f"{rows:,} rows", "rows/s: median (lowest to highest)", "of `psql`'s `COPY`", "peak MiB"],
            (
                [
                    line["path"],
                    f"{line['rows_per_second']:,} ({line['lowest']:,} to {line['highest']:,})",
                    f"{line['of_psql_copy']:.2f}",
                    _most([line["peak_mib"]]),
                ]
                for line in own
            ),
        )


def _surroundings(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if "surroundings" in line:
            on = line["surroundings"]
            into = f"Spark {line['spark']}" if "spark" in line else f"Kafka {on['kafka']}"
            yield (
                f"{on['date']}; {on['cores']} cores ({on['processor']}), {on['memory_gb']} GB; Python {on['python']}, "
                f"Postgres {on['postgres']}, {into}; load before: {on['load_before'][0]:g}"
            )
    for line in lines:
        if "not_measured" in line:
            yield f"Not measured: {line['not_measured']}, because {line['because']}."
    yield ""


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (heading, ["---"] * len(heading), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def _distinct(found: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(found))


def _of(turns: Sequence[Line], contender: str, shape: str) -> list[Line]:
    return [line for line in turns if line["contender"] == contender and line["shape"] == shape]


def _is(line: Line, contender: str, rate: float) -> bool:
    return bool(line["contender"] == contender and line["rate"] == rate)


def _rates(turns: Sequence[Line]) -> str:
    rates = [line["records_per_second"] for line in turns if "refused" not in line]
    if not rates:
        return _no_figure(turns)
    spread = f" ({min(rates):,} to {max(rates):,})" if len(rates) > 1 else ""
    return f"{round(statistics.median(rates)):,}{spread}{_mark(turns)}"


def _target(line: Line) -> Iterator[str]:
    yield line["target"]
    yield str(line["measured"] if line["measured"] is not None else "–")
    yield _met(line["met"])


def _used(turns: Sequence[Line]) -> str:
    """Processor time of the contender, Postgres and Kafka."""
    figures = [line for line in turns if "refused" not in line]
    names = ("cpu_seconds", "postgres_cpu_seconds", "kafka_cpu_seconds")
    return " + ".join(f"{statistics.median(line[name] for line in figures):.1f}" for name in names) if figures else "–"


def _most(peaks: Iterable[float | None]) -> str:
    known = [peak for peak in peaks if peak is not None]
    return f"{max(known):g}" if known else "–"


def _ratio(ratios: Sequence[Line], over: str, shape: str) -> str:
    for line in ratios:
        if line["over"] == over and line["shape"] == shape:
            return f"{line['median']:.2f} ({line['lowest']:.2f} to {line['highest']:.2f})"
    return "–"


def _delays(turns: Sequence[Line]) -> str:
    figures = [line for line in turns if "refused" not in line]
    if not figures:
        return _no_figure(turns)
    names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    return " / ".join(f"{statistics.median(line[name] for line in figures):g}" for name in names) + _mark(turns)


def _no_figure(turns: Sequence[Line]) -> str:
    return f"none: {turns[0]['refused'].splitlines()[0]}" if turns else "–"


def _mark(turns: Sequence[Line]) -> str:
    """An asterisk where the rest of the machine was busy."""
    others = [line["others_cores"] for line in turns if "others_cores" in line]
    return " \\*" if others and statistics.median(others) > BUSY_CORES else ""


def _met(met: bool | None) -> str:
    return {True: "yes", False: "no", None: "–"}[met]


if __name__ == "__main__":
    main()
