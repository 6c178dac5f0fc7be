"""Tracing the harvest: where its spans go, and the ports that make them. Only a process that traces loads this module.

The process sends its spans as OpenTelemetry's standard variables (`OTEL_…`) say. If nobody has set a tracer provider,
as `opentelemetry-instrument` would have done, the SDK's own configurator sets one from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Self

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.trace import ProxyTracerProvider, TracerProvider, get_tracer_provider

from airflow_outbox import __version__
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.ports import Events, Log, Table, TransactionalLog
from airflow_outbox.harvest.spans import Spans, TracedEvents, TracedLog, TracedTable, TracedTransactionalLog
from airflow_outbox.harvest.worker_thread import Worker


class Tracing:
    """The spans of one member of an outbox."""

    def __init__(self, provider: TracerProvider, *, outbox: str) -> None:
        self._provider = provider
        self._spans = Spans(provider.get_tracer("airflow_outbox", __version__), outbox=outbox)

    @classmethod
    def start(cls, *, outbox: str) -> Self:
        """Begin to trace. Raises ConfigurationError when OpenTelemetry can't be configured."""
        if isinstance(get_tracer_provider(), ProxyTracerProvider):
            _configure()
        return cls(get_tracer_provider(), outbox=outbox)

    def table(self, table: Table) -> Table:
        """The table, with spans of take-overs and parking."""
        return TracedTable.around(table, self._spans)

    def log(self, log: Log) -> Log:
        """The log, with spans of batches."""
        return TracedLog.around(log, self._spans)

    def transactional_log(self, log: TransactionalLog) -> TransactionalLog:
        """The log, with spans of batches."""
        return TracedTransactionalLog.around(log, self._spans)

    def events(self, events: Events) -> Events:
        """The engine's events, which tell why a take-over has failed."""
        return TracedEvents(events, self._spans)

    async def close(self, patience: float) -> None:
        """Send the spans that are left, for at most `patience` seconds. Later ones are lost."""
        self._spans.close()
        flush = getattr(self._provider, "force_flush", None)  # the SDK has it, the API does not
        if flush is None:
            return
        worker = Worker("outbox-spans")
        with contextlib.suppress(Exception):  # an exporter's failure must not become the harvest's
            async with asyncio.timeout(patience):
                await worker.call(flush)
        worker.end()


def _configure() -> None:
    """Set a tracer provider from OpenTelemetry's standard variables. Raises ConfigurationError."""
    try:
        from opentelemetry.sdk._configuration import _OTelSDKConfigurator
    except ImportError as error:
        raise ConfigurationError(
            "tracing.enabled: OpenTelemetry's SDK is not installed, so no span could be sent. Run: pip install "
            "opentelemetry-sdk opentelemetry-exporter-otlp, or turn tracing off"
        ) from error

    class Configurator(_OTelSDKConfigurator):
        """The SDK's own one, of which it asks others to derive theirs."""

    exporter = os.environ.setdefault(OTEL_TRACES_EXPORTER, "otlp")  # the specification's default; the SDK has none
    try:
        Configurator().configure()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, ImportError) as error:
        raise ConfigurationError(
            f"tracing.enabled: OpenTelemetry can't be configured: {error}. Install the exporter that "
            f"{OTEL_TRACES_EXPORTER} names ({exporter}), and correct the other variables OTEL_…"
        ) from error
