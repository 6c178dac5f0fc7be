"""A harvester that stops itself where a test wants it to, or that lacks one of its fences: `python zombie.py '{…}'`.

It is the child process otherwise, with the same stdin and stdout. Its one argument is a JSON object:

- `stop`: the point before which it stops itself (SIGSTOP, so nothing of it runs, no thread of Kafka's client either), a
  name of `POINTS`. It does so once, the first time that it comes there after SIGUSR1; `armed`: true spares the signal;
- `without`: what it does without: the fence of "postgres" or of "kafka"; "flush", the wait until Postgres' log is on
  disk; or "new epochs" after a request that may have been sent twice.

The product has no place for that: everything here is put around it from outside.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from airflow_outbox.harvest import postgres_table, process, trouble_reporting
from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.kafka import transactional_log, transactional_producer
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.kafka.transactional_producer import TransactionalProducer
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.producer_state import Call
from airflow_outbox.harvest.resharding import Resharding
from airflow_outbox.postgres import statements
from airflow_outbox.sql import statement

Counts = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]


def always(_: tuple[Any, ...], __: Mapping[str, Any]) -> bool:
    return True


def ends_the_transaction(arguments: tuple[Any, ...], _: Mapping[str, Any]) -> bool:
    return arguments[1] is Call.COMMIT


def has_something_to_witness(_: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    return bool(named["witness"])


POINTS: Mapping[str, tuple[type[Any], str, Counts]] = {
    "take over": (PostgresTable, "take_over", always),
    "fence Kafka": (KafkaTransactionalLog, "fence", always),
    "read the ledger": (KafkaTransactionalLog, "ledger", always),
    "begin": (PostgresTable, "begin", always),
    "read": (PostgresTable, "read", always),
    "produce": (KafkaTransactionalLog, "publish", always),
    "flush": (PostgresTable, "flush", always),
    "write the ledger": (KafkaTransactionalLog, "commit", always),
    "commit": (TransactionalProducer, "_repeat", ends_the_transaction),
    "purge": (PostgresTable, "purge_published", always),
    "witness": (PostgresTable, "heartbeat", has_something_to_witness),
    "reshard": (Resharding, "__call__", always),
    "complete another shard": (Resharding, "_take", always),
    "write the layout": (PostgresTable, "write_layout", always),
}


class Stop:
    """Stops the process before a point, once."""

    def __init__(self, point: str, *, armed: bool) -> None:
        self.armed = armed
        signal.signal(signal.SIGUSR1, self._arm)
        port, method, counts = POINTS[point]
        original = getattr(port, method)

        def stopping(*arguments: Any, **named: Any) -> Any:
            if self.armed and counts(arguments, named):
                self.armed = False
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **named)

        setattr(port, method, stopping)

    def _arm(self, *_: object) -> None:
        self.armed = True


def remove_the_fence_of_postgres() -> None:
    """Statements that go by no fence: whoever asks, they do it."""

    def unfenced(name: str) -> str:
        if name == "fence.holds_fence":
            return "SELECT true"
        return statement(name) if name.startswith("parked.") else statement(name).replace(" AND view = %(view)s", "")

    statements.statement = unfenced


def remove_the_fence_of_kafka() -> None:
    """Producers whose transactional ids are no other member's, and a recovery that ends no transactions but its own.

    Its transactions hold the ledger only at their end: else a successor would wait until Kafka has ended them.
    """
    of = KafkaNames.of
    fence = KafkaTransactionalLog.fence
    begin = TransactionalProducer._begin

    def as_if_it_were_the_first(self: TransactionalProducer) -> None:
        self._has_committed = False
        begin(self)

    def named_for_itself(*arguments: Any) -> KafkaNames:
        names = of(*arguments)
        return replace(names, transactional_id=f"{names.transactional_id}.{os.getpid()}")

    async def only_its_own(self: KafkaTransactionalLog, others: Collection[str] = ()) -> None:
        await fence(self)

    process.KafkaNames.of = named_for_itself  # type: ignore[method-assign,attr-defined]
    transactional_log.KafkaTransactionalLog.fence = only_its_own  # type: ignore[method-assign]
    TransactionalProducer._begin = as_if_it_were_the_first  # type: ignore[method-assign]


def remove_the_wait_for_the_disk() -> None:
    """A term that takes what it sees for what is on disk, and whose own statements don't wait for that either."""

    async def flush(_: PostgresTable, position: int) -> int:
        return position

    connect = postgres_table.connect

    def without_waiting(*arguments: Any, **named: Any) -> Any:
        connection = connect(*arguments, **named)
        connection.execute("SET synchronous_commit = off")
        return connection

    PostgresTable.flush = flush  # type: ignore[method-assign]
    # Not one of its connections: what one of them waits for is on disk for all.
    for module in (postgres_table, process, trouble_reporting):
        module.connect = without_waiting  # type: ignore[attr-defined]


def remove_the_new_epochs() -> None:
    """Producers that take every request for sent once, however long its answer took."""
    transactional_producer.smallest_gap = lambda _: math.inf


REMOVALS = {
    "postgres": remove_the_fence_of_postgres,
    "kafka": remove_the_fence_of_kafka,
    "flush": remove_the_wait_for_the_disk,
    "new epochs": remove_the_new_epochs,
}


def command(*, stop: str | None = None, armed: bool = False, without: tuple[str, ...] = ()) -> list[str]:
    """The command that starts it."""
    return [sys.executable, __file__, json.dumps({"stop": stop, "armed": armed, "without": without})]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for fence in asked["without"]:
        REMOVALS[fence]()
    if asked["stop"] is not None:
        Stop(asked["stop"], armed=asked["armed"])
    main()
