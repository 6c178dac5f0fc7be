"""One turn of a contender over a stream of small transactions: how soon after its commit consumers see each record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.contender import Contender
from benchmarks.peers.processes import ContenderError
from benchmarks.peers.servers import PARTITIONS, ROOT, BenchServers, Workspace
from benchmarks.peers.sightings import RefusedError
from benchmarks.peers.usage import Usage

LEAD_IN_SECONDS = 3.0
"""How long the records come that don't count, before the ones that do."""
_KEEPS_UP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Delays:
    """Milliseconds from when the writer knew that a transaction was committed until a consumer saw its record."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, delays: Sequence[float]) -> Self:
        """Make it from delays in seconds."""
        found = sorted(delays)
        places = (0.5, 0.9, 0.99)
        p50, p90, p99 = (round(1000 * found[int(workspace * len(found))], 1) for workspace in places)
        return cls(p50, p90, p99, round(1000 * found[-1], 1))


@dataclass(frozen=True, slots=True)
class Stream:
    """The size of a stream: rows a second, rows a transaction, and for how long (without the lead-in)."""

    rate: float
    transaction: int
    seconds: float

    @property
    def lead_in(self) -> int:
        """The first rows, which don't count."""
        return self._whole(LEAD_IN_SECONDS * self.rate)

    @property
    def rows(self) -> int:
        return self.lead_in + self._whole(self.seconds * self.rate)

    def _whole(self, rows: float) -> int:
        return max(1, round(rows / self.transaction)) * self.transaction


@dataclass(frozen=True, slots=True)
class StreamResult:
    """A turn. Processor time is in cores."""

    contender: str
    rate: float
    round: int
    rate_kept: float
    """The writer's real rate: below the wanted one where committing takes too long."""
    records: int
    delays: Delays | None = None
    commit_ms: float | None = None
    """The writer's median time for a commit."""
    cores: float | None = None
    postgres_cores: float | None = None
    kafka_cores: float | None = None
    others_cores: float | None = None
    refused: str | None = None

    def as_line(self) -> dict[str, Any]:
        line = asdict(self)
        delays = line.pop("delays") or {}
        return {name: value for name, value in {**line, **delays}.items() if value is not None}


def measured(bench: BenchServers, contender: Contender, stream: Stream, *, number: int) -> StreamResult:
    """Let a contender publish a stream. `number` is the round's."""
    try:
        return _measured(bench, contender, stream, number=number)
    except (ContenderError, RefusedError) as error:
        return StreamResult(contender.name, stream.rate, number, 0.0, stream.rows - stream.lead_in, refused=str(error))


def _measured(bench: BenchServers, contender: Contender, stream: Stream, *, number: int) -> StreamResult:
    with bench.workspace() as workspace, Usage() as usage, contender.turn(workspace) as turn:
        child = turn.begin()
        with Arrivals(workspace) as arrivals:
            usage.watch("contender", child.pid, with_family=True)
            usage.watch("postgres", bench.postgres.pid, with_family=True)
            usage.watch("kafka", bench.kafka.pid, *contender.brokers)
            usage.watch("bench", os.getpid())
            usage.watch("arrivals", arrivals.pid)
            transactions = _written(workspace, contender, stream, usage)
            seen = arrivals.all_of(stream.rows)
    counted = [each for each in transactions if each[0] >= stream.lead_in]
    start, end = counted[0][1], counted[-1][2]
    taken = sorted(committed - sent for _, sent, committed in counted)
    cores = {
        name: round(usage.cpu_seconds(name, start, end) / (end - start), 3)
        for name in ("contender", "postgres", "kafka")
    }
    return StreamResult(
        contender.name,
        stream.rate,
        number,
        rate_kept=round(len(counted) * stream.transaction / (end - start)),
        records=len(counted) * stream.transaction,
        delays=Delays.of([seen[first + n] - at for first, _, at in counted for n in range(stream.transaction)]),
        commit_ms=round(1000 * taken[len(taken) // 2], 1),
        cores=cores["contender"],
        postgres_cores=cores["postgres"],
        kafka_cores=cores["kafka"],
        others_cores=round(usage.others_cores(start, end), 2),
    )


def _written(
    workspace: Workspace, contender: Contender, stream: Stream, usage: Usage
) -> list[tuple[int, float, float]]:
    """Let the writer write; return each transaction's first row, and when it was sent and committed."""
    options = [f"--rate={stream.rate}", f"--transaction={stream.transaction}", f"--rows={stream.rows}"]
    command = [sys.executable, "-m", "benchmarks.peers.writer", workspace.dsn, contender.layout.table, workspace.topic]
    with subprocess.Popen(
        [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as writer:
        assert writer.stdout is not None
        usage.watch("writer", writer.pid)
        written = writer.stdout.read()
    if not written:
        raise ContenderError("the writer has ended: its own words say why")
    return [(first, sent, committed) for first, sent, committed in json.loads(written)]


class Arrivals:
    """A consumer in a process of its own, from now on. A context manager."""

    def __init__(self, workspace: Workspace) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.arrivals", workspace.bootstrap, workspace.topic]
        self._consumer = subprocess.Popen(
            [*command, f"--partitions={PARTITIONS}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._consumer.stdout is not None
        self._close_stdin()
        self._consumer.stdout.read()  # it tells all that it has seen, whether or not it is asked
        self._consumer.stdout.close()
        self._consumer.wait()

    @property
    def pid(self) -> int:
        return self._consumer.pid

    def all_of(self, rows: int) -> dict[int, float]:
        """When each row was seen; call it when the last is committed. Raises RefusedError."""
        deadline = time.monotonic() + _KEEPS_UP_SECONDS
        while (told := self._read())["seen"] < rows:
            if time.monotonic() > deadline:
                raise RefusedError(f"it does not keep up: {rows - told['seen']} of {rows} records had not come in time")
        self._close_stdin()
        while "rows" not in (told := self._read()):
            pass
        if told["again"]:
            raise RefusedError(f"{told['again']} of {rows} records came again")
        return dict(told["rows"])

    def _close_stdin(self) -> None:
        assert self._consumer.stdin is not None
        self._consumer.stdin.close()

    def _read(self) -> Any:
        assert self._consumer.stdout is not None
        line = self._consumer.stdout.readline()
        if not line:
            raise RefusedError("the consumer has ended: its own words say why")
        return json.loads(line)
