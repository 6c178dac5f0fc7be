"""The HTTP endpoint, over a monitor that is made up."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.harvesting import PATIENCE

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest import endpoint as endpoint_of
from airflow_outbox.harvest.endpoint import Endpoint
from airflow_outbox.harvest.health_monitor import HealthMonitor, HealthReport
from airflow_outbox.values import metrics
from airflow_outbox.values.metrics import METRICS, MetricKind, Sample
from airflow_outbox.values.verdict import State, Verdict

SAMPLES = [
    Sample(metrics.BACKLOG, 7),
    Sample(metrics.PUBLISHED, 5, {"topic": 'a "b"\\\n'}),
    Sample(metrics.BATCH, 0.5, {"stage": "read", "quantile": "0.99"}),
    Sample(metrics.BATCH, 1.5, {"stage": "read"}, "sum"),
    Sample(metrics.BATCH, 3, {"stage": "read"}, "count"),
]


class Seen:
    """In the place of a monitor."""

    def __init__(self) -> None:
        self.verdict = Verdict(State.HEALTHY, "a:1 leads")
        self.takes = 0.0

    async def look(self) -> HealthReport:
        await asyncio.sleep(self.takes)
        return HealthReport(0.0, self.verdict, None)

    async def samples(self) -> list[Sample]:
        return SAMPLES


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def endpoint(seen: Seen) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0, cast("HealthMonitor", seen), outbox="shop.outbox")
    yield endpoint
    await asyncio.to_thread(endpoint.close)


def ask(endpoint: Endpoint, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


async def get(endpoint: Endpoint, path: str, **headers: Any) -> tuple[int, str, str]:
    return await asyncio.to_thread(ask, endpoint, path, **headers)


async def test_metrics_are_as_declared(endpoint: Endpoint) -> None:
    status, kind, text = await get(endpoint, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    families = {family.name: family for family in parse(text)}
    own = {metric.name: metric for metric in METRICS if metric.name}
    named = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
    assert {name for name in named if not name.startswith("process_")} == own.keys()
    for name, metric in own.items():
        family = families[name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
    samples = {
        (each.name, *sorted(each.labels.items())): each.value for family in families.values() for each in family.samples
    }
    outbox = ("outbox", "shop.outbox")
    assert (
        samples.items()
        >= {
            ("airflow_outbox_backlog_records", outbox): 7,
            ("airflow_outbox_published_records_total", outbox, ("topic", 'a "b"\\\n')): 5,
            ("airflow_outbox_batch_seconds", outbox, ("quantile", "0.99"), ("stage", "read")): 0.5,
            ("airflow_outbox_batch_seconds_sum", outbox, ("stage", "read")): 1.5,
            ("airflow_outbox_batch_seconds_count", outbox, ("stage", "read")): 3,
        }.items()
    )
    assert families["process_resident_memory_bytes"].samples


async def test_metrics_in_openmetrics(endpoint: Endpoint) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    status, kind, text = await get(endpoint, "/metrics", Accept=accept)
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert "airflow_outbox_backlog_records" in {family.name for family in parse_openmetrics(text)}


@pytest.mark.parametrize("state", State)
async def test_health_is_the_verdict(endpoint: Endpoint, seen: Seen, state: State) -> None:
    seen.verdict = Verdict(state, "cause", remedy="remedy", notes=("note",))
    status, kind, text = await get(endpoint, "/healthz")
    assert status == (200 if state in (State.HEALTHY, State.LAGGING, State.PAUSED) else 503)
    assert kind == "application/json"
    assert json.loads(text) == {
        "state": state.value,
        "cause": "cause",
        "since": None,
        "remedy": "remedy",
        "notes": ["note"],
    }


async def test_it_is_alive_while_the_event_loop_runs(
    endpoint: Endpoint, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen.verdict = Verdict(State.STALLED, "Kafka is away")
    assert (await get(endpoint, "/livez"))[0] == 200
    monkeypatch.setattr(endpoint_of, "_LONGEST_ANSWER", 0.1)
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(ask(endpoint, "/livez")[0]))
    asking.start()
    asking.join(PATIENCE)  # in the event loop
    assert answers == [503]
    seen.takes = 60
    assert (await get(endpoint, "/healthz"))[0] == 503
    async with asyncio.timeout(PATIENCE):  # a busy machine may need more than 0.1 s now and then
        while (await get(endpoint, "/livez"))[0] != 200:
            pass


async def test_other_paths_and_methods(endpoint: Endpoint) -> None:
    status, _, text = await get(endpoint, "/")
    assert (status, text) == (404, "here are /metrics, /healthz, /livez\n")
    assert (await get(endpoint, "/livez?x=1"))[0] == 200
    assert (await get(endpoint, "/livez", method="HEAD"))[::2] == (200, "")
    assert (await get(endpoint, "/livez", method="POST"))[0] == 501


def serving() -> int:
    """How many threads serve a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


async def test_clients_that_hold_connections_open_keep_no_threads(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_of._Handler, "timeout", 10 * PATIENCE)  # none of them gives up meanwhile
    held = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(100)]
    async with asyncio.timeout(PATIENCE):
        while serving() + len(select.select(held, [], [], 0)[0]) < len(held):  # those that were closed can be read
            await asyncio.sleep(0.02)
    assert serving() <= endpoint_of._MOST_REQUESTS
    for connection in held:
        connection.close()

    async def answers() -> int:
        while True:  # their threads end
            with suppress(OSError):
                return (await get(endpoint, "/livez"))[0]

    async with asyncio.timeout(PATIENCE):
        assert await answers() == 200


async def test_it_says_nothing_of_its_visitors(endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        await asyncio.to_thread(connection.recv, 1)
    await get(endpoint, "/livez")
    assert capfd.readouterr() == ("", "")


async def test_a_port_that_is_taken_is_named(endpoint: Endpoint, seen: Seen) -> None:
    with pytest.raises(ConfigurationError, match=rf"can't listen on 127.0.0.1:{endpoint.port} .*--metrics-port"):
        Endpoint("127.0.0.1", endpoint.port, cast("HealthMonitor", seen), outbox="outbox")
    with pytest.raises(ConfigurationError, match=r"can't listen on 203.0.113.1:0 .*--metrics-host"):
        Endpoint("203.0.113.1", 0, cast("HealthMonitor", seen), outbox="outbox")


async def test_what_to_install(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-outbox\[metrics\]'"):
        Endpoint("127.0.0.1", 0, cast("HealthMonitor", seen), outbox="outbox")
