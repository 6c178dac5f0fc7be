"""Where spans go: OpenTelemetry's configuration, its faults, and the end of a process."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider
from support.harvesting import PATIENCE
from support.tracing import Traces

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.process import _tracing
from airflow_outbox.harvest.tracing import Tracing

SETTINGS = {"data_source": "", "kafka": {"bootstrap.servers": "h:9092"}}


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has set a tracer provider."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    assert isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def config(**tracing: Any) -> HarvestConfig:
    return HarvestConfig.validated({**SETTINGS, "tracing": tracing}, source="test")


def test_it_is_off_unless_asked_for(traces: Traces) -> None:
    assert _tracing(config()) is None
    assert _tracing(config(enabled=False)) is None
    assert _tracing(config(enabled=True)) is not None


def test_without_the_api_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-outbox\[tracing\]'"):
        _tracing(config(enabled=True))


@pytest.mark.usefixtures("unset")
def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._configuration", None)
    with pytest.raises(ConfigurationError, match=r"SDK is not installed.*pip install opentelemetry-sdk"):
        Tracing.start(outbox="outbox")


@pytest.mark.usefixtures("unset")
def test_an_unknown_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier_pigeon")
    with pytest.raises(ConfigurationError, match=r"'carrier_pigeon' not found.*OTEL_TRACES_EXPORTER"):
        Tracing.start(outbox="outbox")


async def test_a_provider_that_is_set_is_used(traces: Traces) -> None:
    tracing = Tracing.start(outbox="shop.outbox")
    await tracing.table(AsyncMock()).take_over(UUID(int=1))
    await tracing.close(1)
    [span] = traces.ended("take over")
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "airflow_outbox"


async def test_the_end_waits_for_an_exporter_but_not_long() -> None:
    released = threading.Event()

    def provider(flush: Any) -> Any:
        return cast("Any", SimpleNamespace(get_tracer=NoOpTracerProvider().get_tracer, force_flush=flush))

    flushed = threading.Event()
    await Tracing(provider(flushed.set), outbox="outbox").close(PATIENCE)
    assert flushed.is_set()
    async with asyncio.timeout(PATIENCE):
        await Tracing(provider(released.wait), outbox="outbox").close(0.1)
    released.set()
    await Tracing(provider(lambda: 1 / 0), outbox="outbox").close(PATIENCE)
    await Tracing(NoOpTracerProvider(), outbox="outbox").close(PATIENCE)
