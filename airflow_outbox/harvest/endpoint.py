"""An HTTP endpoint for Prometheus and for probes: `/metrics`, `/healthz` and `/livez`.

It runs in threads of its own, and asks the event loop, where the harvest runs, only for what it shows.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow_outbox import __version__
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.health_monitor import LONGEST_LOOK, HealthMonitor
from airflow_outbox.values.metrics import METRICS, Metric, MetricKind, Sample
from airflow_outbox.values.terminal import as_json
from airflow_outbox.values.verdict import State

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

Answer = TypeVar("Answer")

WELL = frozenset({State.HEALTHY, State.LAGGING, State.PAUSED})
"""States in which records are published, or are not to be."""
_LONGEST_ANSWER = LONGEST_LOOK + 2.0
_LONGEST_REQUEST = 10.0
_MOST_REQUESTS = 16  # at a time: clients that hold connections open cost no more memory than that


class Endpoint:
    """Serves until closed. Made in the event loop that it asks."""

    def __init__(self, host: str, port: int, monitor: HealthMonitor, *, outbox: str) -> None:
        """Begin to listen; port 0 is any free one. Raises ConfigurationError if the port can't be had, or if
        prometheus-client is not installed.
        """
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "metrics need prometheus-client. Run `pip install 'airflow-outbox[metrics]'`"
            ) from None
        try:
            self._server = _Server(host, port, monitor, outbox=outbox)
        except OSError as error:
            raise ConfigurationError(
                f"can't listen on {host}:{port} for metrics: {error.strerror}. "
                "Give another --metrics-port or --metrics-host"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="outbox-metrics", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Requests under way are not waited for."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, monitor: HealthMonitor, *, outbox: str) -> None:
        [(self.address_family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        super().__init__((host, port), _Handler)
        self.loop = asyncio.get_running_loop()
        self.monitor = monitor
        self.outbox = outbox
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer would look up the host's name, which can take long

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no error of the harvest."""

    def ask(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the event loop's answer. Raises TimeoutError."""
        future: Future[Answer] = asyncio.run_coroutine_threadsafe(question, self.loop)
        try:
            return future.result(_LONGEST_ANSWER)
        except TimeoutError:
            future.cancel()
            raise


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = f"airflow-outbox/{__version__}"
    sys_version = ""
    timeout = _LONGEST_REQUEST

    def do_GET(self) -> None:
        answers = {"/metrics": self._metrics, "/healthz": self._healthz, "/livez": self._livez}
        answer = answers.get(urlsplit(self.path).path)
        if answer is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", f"here are {', '.join(answers)}\n".encode())
        try:
            answer()
        except TimeoutError:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"the event loop does not answer\n")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Samples(self.server.ask(self.server.monitor.samples()), outbox=self.server.outbox))
        ProcessCollector(registry=registry)
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._send(HTTPStatus.OK, content_type, encode(registry))

    def _healthz(self) -> None:
        verdict = self.server.ask(self.server.monitor.look()).verdict
        status = HTTPStatus.OK if verdict.state in WELL else HTTPStatus.SERVICE_UNAVAILABLE
        self._send(status, "application/json", f"{as_json(asdict(verdict))}\n".encode())

    def _livez(self) -> None:
        self.server.ask(_nothing())
        self._send(HTTPStatus.OK, "text/plain", b"ok\n")

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: probes come every few seconds."""


async def _nothing() -> None:
    return None


class _Samples:
    """Samples as prometheus_client collects them."""

    def __init__(self, samples: Iterable[Sample], *, outbox: str) -> None:
        self._samples: dict[Metric, list[Sample]] = {metric: [] for metric in METRICS if metric.name}
        for sample in samples:
            self._samples[sample.metric].append(sample)
        self._outbox = outbox

    def collect(self) -> Iterator[Family]:
        from prometheus_client.metrics_core import Metric as Family

        for metric, samples in self._samples.items():
            name = metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name
            family = Family(name, metric.meaning, metric.kind.value)
            for sample in samples:
                suffix = f"_{sample.part}" if sample.part else ""
                family.add_sample(metric.name + suffix, {"outbox": self._outbox, **sample.labels}, float(sample.value))
            yield family
