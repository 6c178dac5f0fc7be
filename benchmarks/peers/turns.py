"""One turn of a contender over a backlog: loaded, published, judged, measured."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers.contender import Contender
from benchmarks.peers.processes import ContenderError
from benchmarks.peers.rows import Shape
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.sightings import FirstAndLast, RefusedError, Sightings
from benchmarks.peers.usage import Usage

_CALM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a turn. Times are in seconds, processor time in seconds of one core."""

    seconds: float
    """From when the contender began to publish until consumers that read committed could read the last record."""
    records_per_second: int
    first_seconds: float
    """Until they could read the first."""
    cpu_seconds: float
    postgres_cpu_seconds: float
    kafka_cpu_seconds: float
    """Of all brokers that the contender publishes to."""
    peak_mb: float
    """The contender's memory, resident, in 10^6 bytes."""
    others_cores: float
    """Cores that the rest of the machine kept busy meanwhile: next to nothing on a calm machine."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn, with its figures or why it gets none."""

    contender: str
    shape: str
    round: int
    records: int
    figures: Figures | None = None
    refused: str | None = None

    def as_line(self) -> dict[str, Any]:
        line: dict[str, Any] = {name: getattr(self, name) for name in ("contender", "shape", "round", "records")}
        return line | (asdict(self.figures) if self.figures else {"refused": self.refused})


def measured(
    bench: BenchServers, contender: Contender, shape: Shape, *, rows: int, number: int, patience: float
) -> TurnResult:
    """Let a contender publish a backlog. `number` is the round's; see `Sightings` for `patience`."""
    try:
        figures = _measured(bench, contender, shape, rows=rows, patience=patience)
    except (ContenderError, RefusedError) as error:
        return TurnResult(contender.name, shape.name, number, rows, refused=str(error))
    return TurnResult(contender.name, shape.name, number, rows, figures)


def _measured(bench: BenchServers, contender: Contender, shape: Shape, *, rows: int, patience: float) -> Figures:
    with bench.workspace() as workspace, Usage() as usage:
        usage.watch("postgres", bench.postgres.pid, with_family=True)
        usage.watch("kafka", bench.kafka.pid, *contender.brokers)
        usage.watch("bench", os.getpid())
        with contender.turn(workspace) as turn:
            contender.layout.load(workspace.dsn, shape, workspace.topic, rows)
            with Sightings(workspace, rows=rows, patience=patience) as sightings:
                usage.watch("sightings", sightings.pid)
                time.sleep(_CALM_SECONDS)
                child = turn.begin()
                usage.watch("contender", child.pid, with_family=True)
                seen = sightings.wait()
            figures = _figures(usage, turn.begun(), seen, rows)
        sightings.judge()  # all that it has done until it ended
        return figures


def _figures(usage: Usage, begun: float, seen: FirstAndLast, rows: int) -> Figures:
    seconds = seen.all - begun
    used = {name: usage.cpu_seconds(name, begun, seen.all) for name in ("contender", "postgres", "kafka")}
    return Figures(
        seconds=round(seconds, 3),
        records_per_second=round(rows / seconds),
        first_seconds=round(seen.first - begun, 3),
        cpu_seconds=round(used["contender"], 2),
        postgres_cpu_seconds=round(used["postgres"], 2),
        kafka_cpu_seconds=round(used["kafka"], 2),
        peak_mb=round(usage.peak_mb("contender")),
        others_cores=round(usage.others_cores(begun, seen.all), 2),
    )
