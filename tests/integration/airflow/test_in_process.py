"""The trigger and the operator in this process, with the real harvesting process and real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest
from support.harvesting import PATIENCE, Outbox, make_outbox, wait_until
from support.tracing import Traces, collector, exporting

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import InvalidRecordError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.many.names import make_list_topics
from airflow_outbox.harvest.supervised_child import COMMAND
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.operate.status import ask_pause
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger
from airflow_outbox.values.trace_context import trace_headers

from .conftest import connections, gone
from .statsd import Stat, StatsdListener

RECORDS = [{"topic": "t", "key": "a", "value": "1"}, {"topic": "t", "key": "b"}]


def test_airflow_lists_the_provider() -> None:
    command = [Path(sys.executable).with_name("airflow"), "providers", "list", "--output", "json"]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert '"package_name": "airflow-outbox"' in listed.stdout


async def test_the_trigger_drains_an_outbox(outbox: Outbox) -> None:
    outbox.stash(2000)
    trigger = OutboxHarvestTrigger(until="drained", emit="end")
    event = await anext(trigger.run())
    await trigger.cleanup()
    counts = {"published": 2000, "topics": {outbox.topic: 2000}}
    assert event.payload == {"status": "ended", "reason": "drained", **counts}
    assert (outbox.left(), len(outbox.committed())) == (0, 2000)


async def test_one_trigger_drains_many_outboxes(outbox: Outbox) -> None:
    names = ["outbox", "shop_*.outbox"]
    reach = {"data_source": outbox.database, "kafka": {"bootstrap.servers": outbox.bootstrap}}
    topics = [outbox.topic, f"{outbox.topic}.other"]
    other = make_outbox(outbox.database, bootstrap=outbox.bootstrap, topic=topics[1], outbox_table="shop_7.outbox")
    make_list_topics(HarvestConfig.validated({**reach, "outboxes": names}, source="test"))
    for each in (outbox, other):
        each.stash(100)
    trigger = OutboxHarvestTrigger(outbox=names, until="drained", emit="end")
    event = await anext(trigger.run())
    await trigger.cleanup()
    counts = {"published": 200, "topics": dict.fromkeys(topics, 100)}
    assert event.payload == {"status": "ended", "reason": "drained", **counts}
    assert [len(each.committed()) for each in (outbox, other)] == [100, 100]


async def test_the_process_of_a_trigger_sends_its_spans(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox.stash(10)
    wanted = {"take over", f"send {outbox.topic}"}
    with collector() as (endpoint, received):
        for name, value in {**exporting(endpoint), "OTEL_BSP_SCHEDULE_DELAY": "100"}.items():
            monkeypatch.setenv(name, value)

        def names() -> set[str]:
            return {span.name for resource in received for scope in resource.scope_spans for span in scope.spans}

        trigger = OutboxHarvestTrigger(emit="end", settings={"tracing": {"enabled": True}})
        running = asyncio.create_task(_first(trigger))
        async with asyncio.timeout(PATIENCE):
            while not names() >= wanted:
                await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert names() == wanted


async def test_the_trigger_tells_an_asset_what_was_published(outbox: Outbox) -> None:
    outbox.stash(500)
    trigger = OutboxHarvestTrigger(until="drained")
    payloads = [event.payload async for event in trigger.run()]
    assert sum(payload["topics"][outbox.topic] for payload in payloads) == 500
    assert payloads[-1]["published"] == 500


async def test_a_parked_record_is_told_to_the_asset_and_to_the_users_function(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parking_alerts.py").write_text("told = []\nasync def tell(event):\n    told.append(event)\n")
    monkeypatch.syspath_prepend(tmp_path)
    outbox.stash(5)
    OutboxHook().stash(OutboxRecord("no-such-topic", "k", "v"))
    trigger = OutboxHarvestTrigger(until="drained", alert_callback="parking_alerts.tell")
    payloads = [event.payload async for event in trigger.run()]
    await trigger.cleanup()
    (parked,) = [payload["parked"] for payload in payloads if "parked" in payload]
    assert parked["topics"] == {"no-such-topic": 1}
    assert (parked["refused"], parked["waiting"], parked["reasons"][0]["cause"]) == (1, 0, "unknown_topic")
    import parking_alerts

    (told,) = [event for event in parking_alerts.told if event["event"] == "parked"]  # a verdict may be told, too
    assert (told["event"], told["outbox"], told["reasons"]) == ("parked", "outbox", parked["reasons"])


async def test_a_change_of_the_verdict_is_told_to_the_users_function(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verdict_alerts.py").write_text("told = []\ndef tell(event):\n    told.append(event)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import verdict_alerts

    def pause(*, paused: bool) -> None:
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            ask_pause(connection, OutboxName.parse(outbox.name), paused=paused)

    async def is_told(state: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while state not in [event["state"] for event in verdict_alerts.told]:
                await asyncio.sleep(0.1)

    pause(paused=True)
    trigger = OutboxHarvestTrigger(emit="end", alert_callback="verdict_alerts.tell")
    running = asyncio.create_task(_first(trigger))
    await is_told("paused")
    pause(paused=False)
    await is_told("healthy")
    told = {event["state"]: event for event in verdict_alerts.told}
    paused, healthy = told["paused"], told["healthy"]
    assert (paused["event"], paused["outbox"], healthy["state"]) == ("verdict", "outbox", "healthy")
    assert paused["remedy"] == "`airflow-outbox resume` ends the pause"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_process_is_gone_when_the_trigger_was_cancelled(outbox: Outbox) -> None:
    others = set(psutil.Process().children())
    trigger = OutboxHarvestTrigger(emit="end")
    running = asyncio.create_task(_first(trigger))
    outbox.stash(10)
    async with asyncio.timeout(PATIENCE):
        while outbox.left():
            await asyncio.sleep(0.1)
    (process,) = set(psutil.Process().children()) - others
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not process.is_running()


async def _first(trigger: OutboxHarvestTrigger) -> Any:
    return await anext(trigger.run())


def test_the_process_dies_with_a_supervisor_that_is_killed(outbox: Outbox, tmp_path: Path) -> None:
    supervisor = tmp_path / "supervisor.py"
    supervisor.write_text(
        "import asyncio\n"
        "from airflow_outbox.triggers.harvest import OutboxHarvestTrigger\n"
        "async def main():\n"
        "    await anext(OutboxHarvestTrigger(emit='end').run())\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(supervisor)], stdout=subprocess.DEVNULL) as process:
        try:
            outbox.stash(10)
            wait_until(lambda: outbox.left() == 0, doing="the harvest")
            (child,) = [each for each in psutil.Process(process.pid).children() if COMMAND[-1] in each.cmdline()]
        finally:
            process.kill()
    wait_until(lambda: gone(child), doing="its end")


def test_the_hook_reaches_outbox_and_brokers(outbox: Outbox) -> None:
    reached, message = OutboxHook().test_connection()
    assert reached, message
    reached, message = OutboxHook(outbox="other").test_connection()
    assert not reached
    assert "airflow-outbox init" in message


def test_the_hook_stashes_in_a_transaction_of_its_own_or_the_callers(outbox: Outbox) -> None:
    hook = OutboxHook()
    hook.stash(OutboxRecord(outbox.topic, "k", "v"))

    def fail_after_stashing() -> None:
        with hook.transaction() as connection:
            stash(connection, OutboxRecord(outbox.topic, "k", "v"))
            connection.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        fail_after_stashing()
    assert outbox.left() == 1


async def test_the_hook_tells_what_is_published(outbox: Outbox) -> None:
    hook = OutboxHook()
    ticket = hook.stash(OutboxRecord(outbox.topic, "k", "v"))
    assert not hook.published(ticket)
    with pytest.raises(TimeoutError, match="not published within"):
        hook.wait_until_published(ticket, timeout=0.1)
    waiting = asyncio.create_task(asyncio.to_thread(hook.wait_until_published, ticket, timeout=2 * PATIENCE))
    trigger = OutboxHarvestTrigger(until="drained", emit="end")
    await anext(trigger.run())
    await trigger.cleanup()
    await waiting
    assert hook.published(str(ticket))


def run_operator(*, run_id: str = "r", try_number: int = 1, **arguments: Any) -> str:
    task = OutboxStashOperator(task_id="stash", **{"records": RECORDS, **arguments})
    instance = SimpleNamespace(dag_id="d", run_id=run_id, task_id="stash", map_index=-1, try_number=try_number)
    return task.execute({"ti": instance})


def test_the_operator_commits_records_and_rows_together_and_once(outbox: Outbox) -> None:
    outbox.query("CREATE TABLE business (n INTEGER)")
    insert = {"sql": "INSERT INTO business VALUES (%s)", "parameters": [7]}
    first = run_operator(**insert)
    (expected,) = outbox.query("SELECT DISTINCT transaction_id::text::bigint FROM outbox")
    assert Ticket.parse(first).transaction_id == expected[0]
    assert run_operator(**insert, try_number=2) == first
    assert (outbox.left(), outbox.query("SELECT n FROM business")) == (2, [(7,)])
    assert run_operator(**insert, version=1) != first
    assert run_operator(**insert, run_id="s") != first
    assert (outbox.left(), len(outbox.query("SELECT n FROM business"))) == (6, 3)


def test_the_operator_gives_records_the_context_of_its_task(outbox: Outbox, traces: Traces) -> None:
    with traces.tracer.start_as_current_span("task"):
        context = trace_headers()
        run_operator(tracing=True)
        OutboxHook().stash(OutboxRecord("t", "c", None), tracing=True)
        run_operator(run_id="untraced")
    headers = outbox.query(
        "SELECT kafka_header_keys, kafka_header_values, count(*) FROM outbox GROUP BY 1, 2 ORDER BY 1"
    )
    assert headers == [([], [], 2), ([*context], [*context.values()], 3)]


def test_what_a_role_for_jobs_may_do_is_enough_to_find_the_ticket_again(
    outbox: Outbox, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"job_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(outbox.database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        for statement in grant_statements(owner, OutboxName.parse(outbox.name), "job", role):
            owner.execute(statement.encode())
        made = connections(outbox.database, kafka, login=role, password="secret")["postgres_default"]
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(made))
        try:
            assert run_operator() == run_operator(try_number=2)
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert outbox.left() == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sql": "INSERT INTO nowhere VALUES (1)"}, PostgresError),
        ({"sql": "COMMIT"}, PostgresError),
        ({"records": [*RECORDS, {"topic": "no topic", "key": "k"}]}, InvalidRecordError),
    ],
)
def test_an_operator_that_fails_writes_nothing_and_can_be_tried_again(
    outbox: Outbox, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        run_operator(**arguments)
    assert outbox.left() == 0
    run_operator(try_number=2)
    assert outbox.left() == 2


def test_of_two_tries_at_once_one_commits(outbox: Outbox) -> None:
    gate, waiting = "SELECT pg_advisory_xact_lock_shared(7)", "SELECT FROM pg_locks WHERE objid = 7 AND NOT granted"
    with ThreadPoolExecutor(2) as pool:
        with psycopg.connect(outbox.database) as obstacle:
            obstacle.execute("SELECT pg_advisory_xact_lock(7)")
            tries = [pool.submit(run_operator, try_number=number, sql=gate) for number in (1, 2)]
            of_this_database = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            wait_until(lambda: len(outbox.query(f"{waiting} AND {of_this_database}")) == 2, doing="the tries")
        outcomes = [each.exception() or each.result() for each in tries]
    (ticket,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
    (refusal,) = [outcome for outcome in outcomes if isinstance(outcome, PostgresError)]
    assert "another try" in str(refusal)
    assert outbox.left() == 2
    assert run_operator(try_number=3) == ticket


AS_A_TRIGGERER = """
import os
from airflow.configuration import conf
from airflow.observability import stats
from airflow.observability.metrics import stats_utils

legacy = conf.getboolean("metrics", "legacy_names_on")
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)
if os.fork() == 0:  # triggers run in a process of their own
    from airflow_outbox.triggers.stats import StatsRelay
    relay = StatsRelay('sales."the outbox"', print)
    metrics = {"backlog": 7, "parked": {"headers": 2}, "batch_time": {"read": {"0.99": 0.25}}, "elections": 1}
    relay.take({"event": "measured", "metrics": metrics})
    relay.take({"event": "progress", "topics": {"a.b-c": 5}})
    os._exit(0)
os.wait()
"""


def test_stats_as_a_triggerer_sets_them_up_arrive_with_their_tags() -> None:
    with contextlib.closing(StatsdListener()) as listener:
        settings = {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(listener.port),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        }
        command = [sys.executable, "-c", AS_A_TRIGGERER]
        ran = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
        wait_until(lambda: len(listener.of("sales._the_outbox_")) == 5, doing=ran.stderr)
        found = listener.of("sales._the_outbox_")
    outbox = ("outbox", "sales._the_outbox_")
    assert found == [
        Stat("airflow.outbox.backlog", (outbox,), 7.0, "g"),
        Stat("airflow.outbox.parked", (("cause", "headers"), outbox), 2.0, "g"),
        Stat("airflow.outbox.batch_time", (outbox, ("quantile", "0.99"), ("stage", "read")), 0.25, "g"),
        Stat("airflow.outbox.elections", (outbox,), 1.0, "c"),
        Stat("airflow.outbox.published", (outbox, ("topic", "a.b-c")), 5.0, "c"),
    ]
    assert "can't be sent" not in ran.stdout
