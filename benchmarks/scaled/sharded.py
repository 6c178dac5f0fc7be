"""One turn of this project with several shards, in one process or several, near its servers or far away from them.

The outbox is paused until all shards are led. The rate is that of the middle of the backlog: at its end some shards
have less left than others.
"""

from __future__ import annotations

import os
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers, Workspace
from benchmarks.peers.sightings import Changes, RefusedError, Sightings
from benchmarks.peers.usage import Usage
from benchmarks.scaled.generated import GENERATED
from benchmarks.scaled.relay import Relay, relayed

FROM, UNTIL = 0.1, 0.8
"""The part of the backlog whose rate counts."""
_PATIENCE = 60.0
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LED = """
SELECT count(*), count(DISTINCT member) FROM outbox_shard WHERE slots IS DISTINCT FROM '{}' AND begun_view = view
"""
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'airflow-outbox %' AND datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Distance:
    """Relays to Postgres and Kafka, and the measured `round_trip` to Postgres, in seconds."""

    postgres: Relay
    kafka: Relay
    round_trip: float

    def away(self, workspace: Workspace) -> Workspace:
        """The same workspace, from a distance."""
        dsn = make_conninfo(workspace.dsn, port=self.postgres.port)
        return replace(workspace, dsn=dsn, bootstrap=f"{LOOPBACK}:{self.kafka.port}")


@contextmanager
def servers_far_away(round_trip: float) -> Iterator[tuple[BenchServers, Distance]]:
    """Servers, and a distance of so many seconds to them. Kafka has a second listener for clients from there."""
    near, listener, controller = (free_port() for _ in range(3))
    with relayed(listener, seconds=round_trip / 2) as kafka:
        properties = {
            "listeners": ",".join(
                f"{name}://{LOOPBACK}:{port}"
                for name, port in (("PLAINTEXT", near), ("FAR", listener), ("CONTROLLER", controller))
            ),
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{near},FAR://{LOOPBACK}:{kafka.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        }
        with (
            BenchServers.started(kafka_port=near, kafka_properties=properties) as bench,
            relayed(bench.postgres.port, seconds=round_trip / 2) as postgres,
        ):
            yield bench, Distance(postgres, kafka, _measured_round_trip(bench, postgres))


def _measured_round_trip(bench: BenchServers, relay: Relay) -> float:
    times = []
    with psycopg.connect(make_conninfo(bench.postgres.dsn(), port=relay.port), autocommit=True) as connection:
        for _ in range(10):
            began = time.monotonic()
            connection.execute("SELECT")
            times.append(time.monotonic() - began)
    return statistics.median(times)


@dataclass(frozen=True, slots=True)
class Members:
    """How the outbox is harvested: `shards` over `processes`; None: by default."""

    shards: int
    processes: int = 1
    batch_records: int | None = None
    transactional_ids: int | None = None

    def __str__(self) -> str:
        return f"{self.shards} shards" + (f" over {self.processes} processes" if self.processes > 1 else "")

    @property
    def settings(self) -> dict[str, object]:
        limits = {"batch_records": self.batch_records, "transactional_ids": self.transactional_ids}
        return {"shards": self.shards, "limits": {name: value for name, value in limits.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class ShardedTurn:
    """The result of a turn: figures, or why it gets none. Processor time is in microseconds a record."""

    members: Members
    round: int
    records: int
    records_per_second: int | None = None
    seconds: float | None = None
    """How long the part of the backlog took that counts."""
    harvester_us: float | None = None
    postgres_us: float | None = None
    kafka_us: float | None = None
    others_cores: float | None = None
    """Cores that all else kept busy: the relays, the bench, the rest of the machine."""
    connections: int | None = None
    threads: int | None = None
    """In all processes, like the connections to Postgres."""
    peak_mb: float | None = None
    """In the largest process."""
    refused: str | None = None

    def as_line(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found.pop("members"), **found}


def sharded(
    bench: BenchServers, members: Members, *, rows: int, number: int, distance: Distance | None = None
) -> ShardedTurn:
    """Let the members publish a backlog. `number` is the round's."""
    turn = ShardedTurn(members, number, rows)
    try:
        return _measured(bench, turn, distance)
    except (ContenderError, RefusedError) as error:
        return replace(turn, refused=str(error))


def _measured(bench: BenchServers, turn: ShardedTurn, distance: Distance | None) -> ShardedTurn:
    members, rows = turn.members, turn.records
    with bench.workspace() as near, Usage() as usage, ExitStack() as stack:
        far = near if distance is None else distance.away(near)
        contender = AirflowOutbox(str(members), members.settings)
        file = contender.made(far)
        usage.watch("postgres", bench.postgres.pid, with_family=True)
        usage.watch("kafka", bench.kafka.pid)
        connection = stack.enter_context(psycopg.connect(near.dsn, autocommit=True))
        connection.execute("UPDATE outbox_state SET paused = true")
        GENERATED.load(near.dsn, SHAPES["keys"], near.topic, rows)
        with Sightings(near, rows=rows, patience=_PATIENCE) as sightings:
            children = []
            for each in range(members.processes):
                children.append(Child(contender.command(file), log=near.folder / f"harvest-{each}.log"))
                stack.callback(children[-1].end)
                usage.watch(f"member {each}", children[-1].pid, with_family=True)
            _await_leaders(connection, members)
            connection.execute("UPDATE outbox_state SET paused = false")
            sightings.wait()
            connections = _one(connection, _CONNECTIONS)
            threads = sum(_threads(child.pid) for child in children)
            time.sleep(_LOOK_SECONDS)
            for child in children:
                child.end()
            sightings.judge()
        began, ended = part(sightings.changes)
        used = {name: usage.cpu_seconds(name, began, ended) for name in usage.names}
        records = (UNTIL - FROM) * rows
        harvesters = [name for name in usage.names if name.startswith("member")]
        return replace(
            turn,
            records_per_second=round(records / (ended - began)),
            seconds=round(ended - began, 3),
            harvester_us=round(1e6 * sum(used[name] for name in harvesters) / records, 2),
            postgres_us=round(1e6 * used["postgres"] / records, 2),
            kafka_us=round(1e6 * used["kafka"] / records, 2),
            others_cores=round(usage.others_cores(began, ended), 2),
            connections=connections,
            threads=threads,
            peak_mb=round(max(usage.peak_mb(name) for name in harvesters)),
        )


def part(changes: Changes) -> tuple[float, float]:
    """The moments at which the part began and ended that counts. Ends of transactions have offsets like records, and
    are as frequent everywhere.
    """
    moments = [moment for moment, _ in changes]
    totals = [sum(offsets) for _, offsets in changes]

    def reached(share: float) -> float:
        total = share * totals[-1]
        place = max(1, bisect_left(totals, total))
        inside = (total - totals[place - 1]) / (totals[place] - totals[place - 1])
        return moments[place - 1] + inside * (moments[place] - moments[place - 1])

    return reached(FROM), reached(UNTIL)


def _await_leaders(connection: psycopg.Connection[Any], members: Members) -> None:
    """Wait until all shards are led, and all processes lead some."""
    deadline = time.monotonic() + _START_SECONDS
    while (found := connection.execute(_LED).fetchone()) != (members.shards, members.processes):
        if time.monotonic() > deadline:
            raise ContenderError(f"not all shards are led, and by all processes, within {_START_SECONDS:g} s: {found}")
        time.sleep(_LOOK_SECONDS)


def _one(connection: psycopg.Connection[Any], query: LiteralString) -> int:
    found = connection.execute(query).fetchone()
    return 0 if found is None else int(found[0])


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
