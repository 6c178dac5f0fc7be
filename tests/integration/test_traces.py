"""Traces through real Postgres and Kafka: from the span that stashes to the consumer's, and the harvest's own spans."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
import yaml
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session
from support.harvesting import CALM, COMMAND, PATIENCE, Outbox, Process, make_outbox, wait_until
from support.tracing import Traces, collector, consume, exporting, linked

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.process import Until, harvest

OWN = {"tracestate": "vendor=x", "traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}
UNHURRIED_CHILD = """
from airflow_outbox.harvest import __main__ as child

child._GRACE, child._HARD_END = 50.0, 55.0
child.main()
"""
"""The harvesting child, which has more than a second to end."""
UNTRACED = """
import asyncio, json, sys
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.process import Until, harvest

async def run():
    config = HarvestConfig.validated(json.loads(sys.argv[1]), source="test")
    await harvest(config, until=Until(drained=True), events=lambda *_, **__: None, stop=asyncio.Event(), grace=1)

asyncio.run(run())
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


@pytest.fixture(params=["exactly_once", "at_least_once"])
def outbox(request: pytest.FixtureRequest, database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    """An outbox whose harvest is traced, in each mode of delivery."""
    return make_outbox(
        database,
        bootstrap=kafka.bootstrap,
        topic=topic_prefix + "data",
        delivery=request.param,
        tracing={"enabled": True},
        limits=CALM,
    )


@pytest.fixture
def drained(outbox: Outbox) -> Iterator[Callable[[], None]]:
    """Harvest all that is there, in this process, where the spans are."""
    config = HarvestConfig.validated(outbox.settings, source="test")
    threshold = gc.get_threshold()

    def drain() -> None:
        events: list[dict[str, Any]] = []

        async def run() -> None:
            stop = asyncio.Event()
            await harvest(
                config,
                until=Until(drained=True),
                events=lambda event, **fields: events.append({"event": event, **fields}),
                stop=stop,
                grace=1,
            )

        asyncio.run(run())
        assert outbox.left() == 0, events

    yield drain
    gc.unfreeze()
    gc.set_threshold(*threshold)


def writers(database: str) -> dict[str, AbstractContextManager[Any]]:
    """A transaction of each kind in which records are stashed."""
    settings: Any = conninfo_to_dict(database)

    def engine(driver: str) -> sqlalchemy.Engine:
        url = f"postgresql+{driver}://"
        return sqlalchemy.create_engine(url, connect_args=settings, poolclass=sqlalchemy.NullPool)

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine("psycopg")) as opened, opened.begin():
            yield opened

    return {
        "psycopg": psycopg.connect(database),
        "sqlalchemy": engine("psycopg").begin(),
        "sqlalchemy over psycopg2": engine("psycopg2").begin(),
        "sqlalchemy session": session(),
    }


def ids(span: Any) -> tuple[int, int]:
    context = span.get_span_context()
    return context.trace_id, context.span_id


def of_sending(traces: Traces, topic: str) -> list[ReadableSpan]:
    found = traces.ended("send")
    assert {dict(span.attributes or {})["messaging.destination.name"] for span in found} == {topic}
    return found


def test_a_consumer_goes_on_with_the_trace_of_the_transaction(
    outbox: Outbox, traces: Traces, drained: Callable[[], None]
) -> None:
    stashing = {}
    for name, transaction in writers(outbox.database).items():
        with traces.tracer.start_as_current_span(f"order by {name}") as span, transaction as connection:
            stash(connection, OutboxRecord(outbox.topic, name, "v", {"a": "1"}), tracing=True)
        stashing[name] = ids(span)
    drained()
    messages = {message.key().decode(): message for message in outbox.committed()}
    assert messages.keys() == stashing.keys()
    for name, message in messages.items():
        (trace, span_id), headers = stashing[name], message.headers()
        assert [header for header, _ in headers] == ["a", "traceparent"]
        assert headers[1][1].decode().startswith(f"00-{trace:032x}-{span_id:016x}-")
        assert consume(message, traces.tracer).trace_id == trace
        consumed = traces.ended("process")[-1]
        assert consumed.parent is not None
        assert consumed.parent.span_id == span_id
    batches = of_sending(traces, outbox.topic)
    assert sorted(link for span in batches for link in linked(span)) == sorted(stashing.values())
    assert sum(dict(span.attributes or {})["messaging.batch.message_count"] for span in batches) == len(stashing)
    assert {span.status.status_code for span in batches} == {StatusCode.UNSET}


def test_a_context_of_the_records_own_is_passed_on_as_it_is(
    outbox: Outbox, traces: Traces, drained: Callable[[], None]
) -> None:
    with traces.tracer.start_as_current_span("order"), psycopg.connect(outbox.database) as connection:
        stash(connection, OutboxRecord(outbox.topic, "own", "v", OWN), tracing=True)
        stash(connection, OutboxRecord(outbox.topic, "not asked", "v"))
        stash(connection, OutboxRecord(outbox.topic, "not a context", "v", {"traceparent": "none"}), tracing=True)
    drained()
    headers = {message.key().decode(): message.headers() for message in outbox.committed()}
    assert headers == {
        "own": [(name, value.encode()) for name, value in OWN.items()],
        "not asked": None,
        "not a context": [("traceparent", b"none")],
    }
    links = [link for span in of_sending(traces, outbox.topic) for link in linked(span)]
    assert links == [(int("a" * 32, 16), int("b" * 16, 16))]


def test_take_over_and_parking_are_spans(outbox: Outbox, traces: Traces, drained: Callable[[], None]) -> None:
    missing = outbox.topic.removesuffix("data") + "missing"
    stashing = {}
    for topic in (outbox.topic, missing):
        with traces.tracer.start_as_current_span("order") as span, psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(topic, "k", str(number)) for number in range(3)], tracing=True)
        stashing[topic] = ids(span)
    drained()
    [take_over] = traces.ended("take over")
    assert take_over.status.status_code is StatusCode.UNSET
    steps = [event.name for event in take_over.events]
    all_steps = ["fenced in Postgres", "fenced in Kafka", "read the ledger"]
    assert steps == (all_steps if outbox.settings["delivery"] == "exactly_once" else all_steps[:1])
    [parked] = traces.ended("park")
    assert linked(parked) == [stashing[missing]]
    told = dict(parked.attributes or {})
    assert (told["outbox.refused"], told["outbox.waiting"], told["outbox.causes"]) == (1, 2, ("unknown_topic",))
    assert parked.status.status_code is StatusCode.ERROR
    # At least once, the records of a key go out one after the other.
    assert {tuple(linked(span)) for span in of_sending(traces, outbox.topic)} == {(stashing[outbox.topic],)}


@pytest.mark.parametrize("outbox", ["exactly_once"], indirect=True)
def test_a_harvest_that_is_not_traced_does_not_even_load_opentelemetry(outbox: Outbox) -> None:
    with psycopg.connect(outbox.database) as connection:
        stash(connection, OutboxRecord(outbox.topic, "k", "v", OWN))
    for enabled, modules in ((False, True), (True, False)):
        settings = {**outbox.settings, "tracing": {"enabled": enabled}}
        command = [sys.executable, "-c", UNTRACED, json.dumps(settings)]
        with collector() as (endpoint, _):
            environment = {**os.environ, **exporting(endpoint)}
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert (ran.stdout.strip() == "[]") is modules, ran.stdout
    [message] = outbox.committed()
    assert message.headers() == [(name, value.encode()) for name, value in OWN.items()]


@pytest.mark.parametrize("outbox", ["exactly_once"], indirect=True)
def test_the_process_sends_its_spans_before_it_ends(outbox: Outbox) -> None:
    """Their turn would come in ten minutes."""
    with collector() as (endpoint, received):
        environment = exporting(endpoint) | {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
        command = [sys.executable, "-c", UNHURRIED_CHILD]
        process = Process(command, first_line={"config": outbox.settings}, environment=environment)
        try:
            publish_and_end(outbox, process)
        finally:
            process.end()
    spans = [span for resource in received for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"take over", f"send {outbox.topic}"}
    named = {each.key: each.value.string_value for resource in received for each in resource.resource.attributes}
    assert named["service.name"] == "orders-harvest"


@pytest.mark.parametrize("outbox", ["exactly_once"], indirect=True)
def test_a_collector_that_is_away_holds_nothing_up(outbox: Outbox, tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    process = Process([*COMMAND, "harvest", "-f", str(file)], environment=exporting("http://127.0.0.1:9"))
    try:
        publish_and_end(outbox, process)
    finally:
        process.end()


def publish_and_end(outbox: Outbox, process: Process) -> None:
    """Let it publish a hundred records, and end it gracefully."""
    process.wait_for("view")
    outbox.stash(100)
    wait_until(lambda: outbox.left() == 0)
    process.popen.terminate()
    assert process.ends() < PATIENCE
    assert process.popen.returncode == 0
    process.wait_for("ended", published=100)
