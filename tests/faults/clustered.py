"""A harvester that publishes to several clusters, and kills or stops itself at a step: `python clustered.py '{…}'`.

It is the child process otherwise, with the same stdin and stdout. Its one argument is a JSON object:

- `kill`, or `stop`: the step before which it kills itself (SIGKILL) or stands still (SIGSTOP), a name of `STEPS`, when
  it comes there for the last of so many `times` after SIGUSR1; `armed`: true spares the signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.commitment import PRIMARY


def always(*_: Any) -> bool:
    return True


def on_a_backup(_: ExactlyOnceTerm, log: int, __: Any) -> bool:
    return log != PRIMARY


STEPS: Mapping[str, tuple[type[Any], str, Callable[..., bool]]] = {
    "write the entry": (KafkaTransactionalLog, "write", always),
    "commit on the primary": (ExactlyOnceTerm, "_commit_on", always),
    "commit on a backup": (ExactlyOnceTerm, "_commit_on", on_a_backup),
    "keep": (PostgresTable, "keep_owed", always),
    "purge": (PostgresTable, "purge_published", always),
    "note producers": (PostgresTable, "note_producers", always),
    "replay": (Logs, "publish_on", always),
    "commit": (KafkaTransactionalLog, "commit", always),
    "replayed": (Logs, "replayed", always),
    "begin": (PostgresTable, "begin", always),
    "take over": (PostgresTable, "take_over", always),
    "fence": (KafkaTransactionalLog, "fence", always),
    "read a ledger": (KafkaTransactionalLog, "ledger", always),
    "publish": (KafkaTransactionalLog, "publish", always),
    "await readable": (KafkaTransactionalLog, "await_readable", always),
    "heartbeat": (PostgresTable, "heartbeat", always),
}
"""The steps, by method; some calls of a method count only."""


def strike_before(step: str, number: signal.Signals, *, armed: bool, times: int) -> None:
    """Have the process send itself a signal before a step, once."""
    owner, method, counts = STEPS[step]
    original = getattr(owner, method)
    is_armed, left = [armed], [times]
    signal.signal(signal.SIGUSR1, lambda *_: is_armed.__setitem__(0, True))

    def striking(*arguments: Any, **named: Any) -> Any:
        if is_armed[0] and counts(*arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), number)
        return original(*arguments, **named)

    setattr(owner, method, striking)


def command(*, kill: str | None = None, stop: str | None = None, armed: bool = False, times: int = 1) -> list[str]:
    """The command that starts it."""
    asked = {"kill": kill, "stop": stop, "armed": armed, "times": times}
    return [sys.executable, __file__, json.dumps(asked)]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for what, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
        if asked[what] is not None:
            strike_before(asked[what], number, armed=asked["armed"], times=asked["times"])
    main()
