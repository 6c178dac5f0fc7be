"""The demo: a Spark job sends real flights through Postgres and the harvester under Airflow into Kafka."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psycopg

from airflow_outbox.demo.check import CheckResult, TopicReader, compare, compare_tables, shown
from airflow_outbox.demo.display import Display
from airflow_outbox.demo.embedded.airflow import PASSWORD, START_SECONDS, USER
from airflow_outbox.demo.flights import JANUARY_FLIGHTS, TOPICS, read_flights
from airflow_outbox.demo.follow import CHECK_DAG, FLIGHTS_DAG, HARVEST_DAG, Follower
from airflow_outbox.demo.servers import DemoServers, emptied

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED_STATUS = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`once`: check and end when all has arrived. `rows`: at most this many flights, from the top; None: January's.

    `folder` is for the servers' data and is emptied at the start; `dags` has the Dags, `jars` Kafka's jars.
    """

    once: bool
    rows: int | None
    folder: Path
    dags: Path
    jars: Path

    @property
    def month(self) -> int | None:
        """January, which comes first in the file; the whole year when more rows are wanted than January has."""
        return None if self.rows is not None and self.rows > JANUARY_FLIGHTS else 1


class Interrupted(BaseException):
    """The user wants an end: SIGINT, SIGTERM or SIGHUP."""


def run(options: DemoOptions) -> int:
    """Run the demo; return its exit status. With `once` the last line of standard output is the result, a JSON object.

    Raises OutboxError for an error before there was anything to check. All that was started has ended then, too.
    """
    started = time.monotonic()
    flights = list(read_flights(month=options.month, rows=options.rows))
    display = Display(total=len(flights))
    try:
        with _interruptible(), ExitStack() as stack:
            servers = DemoServers(stack.enter_context(emptied(options.folder)), dags=options.dags, jars=options.jars)
            stack.callback(servers.stop)
            stack.callback(_deaf_to_interruptions, display)
            _start(servers, options, display)
            connection = stack.enter_context(psycopg.connect(servers.data_source, autocommit=True))
            reader = stack.enter_context(closing(TopicReader(servers.kafka.bootstrap, TOPICS)))
            follower = Follower(api=servers.airflow.api, connection=connection, reader=reader, display=display)
            with display:
                follower.until_all_has_arrived() if options.once else follower.for_ever()
            verdict = compare(flights, reader.delivered)
            problems = [*verdict.problems, *compare_tables(flights, connection)]
            stashed = follower.progression().stashed
            checked = follower.checked() if options.once else 0
    except Interrupted:
        return _INTERRUPTED_STATUS if options.once else 0
    if stashed != len(flights):
        problems.append(f"{stashed} records were stashed, but the input has {len(flights)} flights")
    if checked != len(flights):
        problems.append(f"the Dag {CHECK_DAG} found {checked} flights, but the input has {len(flights)}")
    for problem in shown(problems):
        display.say(problem)
    print(result_line(verdict, stashed=stashed, checked=checked, seconds=time.monotonic() - started), flush=True)
    return 1 if problems else 0


def result_line(verdict: CheckResult, *, stashed: int, checked: int, seconds: float) -> str:
    """The demo's result as JSON. `checked`: flights that the Dag `flights_check` found equal in topics and tables;
    `seconds`: from the start until everything had ended again.
    """
    return json.dumps(
        {
            "stashed": stashed,
            "delivered": verdict.delivered,
            "missing": verdict.missing,
            "duplicates": verdict.duplicates,
            "out_of_order": verdict.out_of_order,
            "checked": checked,
            "seconds": round(seconds, 1),
        }
    )


def _start(servers: DemoServers, options: DemoOptions, display: Display) -> None:
    servers.start_postgres()
    display.say("Postgres runs")
    servers.start_kafka()
    display.say(f"Kafka runs, with the topics {', '.join(TOPICS)}")
    for line in servers.make_outbox().splitlines():
        display.say(f"airflow-outbox init: {line}")
    display.say("Airflow is starting; this takes half a minute")
    servers.airflow.start()
    display.say(f"Airflow's UI is at {servers.airflow.ui_url}, user {USER}, password {PASSWORD}")
    display.say(f"the outbox's page is at {servers.airflow.ui_url}/plugin/outbox")
    api = servers.airflow.api
    for dag in (HARVEST_DAG, CHECK_DAG, FLIGHTS_DAG):
        api.wait_for_dag(dag, timeout=START_SECONDS)
        api.unpause(dag)
    api.trigger(FLIGHTS_DAG, conf={"month": options.month, "rows": options.rows})
    display.say(f"Dag {HARVEST_DAG} is unpaused; Dag {FLIGHTS_DAG} is triggered and starts Spark; {CHECK_DAG} follows")
    if not options.once:
        display.say(f"look at it with: airflow-outbox check -f {servers.configuration}")
        display.say("trigger other months in the UI; Ctrl-C stops everything")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise Interrupted at the signals that ask for an end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = {number: signal.signal(number, interrupt) for number in _INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _deaf_to_interruptions(display: Display) -> None:
    """A second Ctrl-C must not keep servers from being ended."""
    for number in _INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)
    display.say("ending everything")
