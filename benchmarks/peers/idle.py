"""The resources that a contender uses while nothing comes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from benchmarks.peers.contender import Contender
from benchmarks.peers.processes import ContenderError
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.usage import Usage

SETTINGS = {"shared_preload_libraries": "pg_stat_statements"}
"""Settings for Postgres's start, so that statements can be counted."""
_SETTLE_SECONDS = 5.0
_CALLS = """
SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 70), sum(calls)::bigint
FROM pg_stat_statements AS counted JOIN pg_database ON pg_database.oid = counted.dbid
WHERE datname = %s GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Idle:
    """A turn in which nothing came."""

    contender: str
    seconds: float
    cpu_percent: float
    """The contender's processes, in percent of one core."""
    postgres_cpu_percent: float
    kafka_cpu_percent: float
    statements_per_second: float
    """At Postgres, over all connections, except what comes by a replication connection."""
    statements: dict[str, float]
    """The same by statement, the most frequent first."""
    others_cores: float

    def as_line(self) -> dict[str, Any]:
        return {"measured": "idle", **asdict(self)}


def measured(bench: BenchServers, contender: Contender, *, seconds: float) -> Idle | str:
    """Let a contender wait for records, or say why it can't be. Its Postgres needs `SETTINGS`."""
    try:
        return _measured(bench, contender, seconds=seconds)
    except ContenderError as error:
        return str(error)


def _measured(bench: BenchServers, contender: Contender, *, seconds: float) -> Idle:
    with bench.workspace() as workspace, Usage() as usage, contender.turn(workspace) as turn:
        child = turn.begin()
        usage.watch("contender", child.pid, with_family=True)
        usage.watch("postgres", bench.postgres.pid, with_family=True)
        usage.watch("kafka", bench.kafka.pid)
        time.sleep(_SETTLE_SECONDS)
        before, start = _calls(bench, workspace.topic), time.monotonic()
        time.sleep(seconds)
        after, end = _calls(bench, workspace.topic), time.monotonic()
        time.sleep(0.2)  # for one more look at what they use
    made = {text: (number - before.get(text, 0)) / (end - start) for text, number in after.items()}
    percent = {
        name: round(100 * usage.cpu_seconds(name, start, end) / (end - start), 1)
        for name in ("contender", "postgres", "kafka")
    }
    return Idle(
        contender.name,
        seconds,
        cpu_percent=percent["contender"],
        postgres_cpu_percent=percent["postgres"],
        kafka_cpu_percent=percent["kafka"],
        statements_per_second=round(sum(made.values()), 1),
        statements={
            text: round(made[text], 1) for text in sorted(made, key=made.__getitem__, reverse=True) if made[text]
        },
        others_cores=round(usage.others_cores(start, end), 2),
    )


def _calls(bench: BenchServers, database: str) -> dict[str, int]:
    """How often each statement has been run in a database."""
    with psycopg.connect(bench.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return dict(connection.execute(_CALLS, (database,)).fetchall())
