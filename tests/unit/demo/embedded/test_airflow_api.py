"""A small client of Airflow's REST API, before a server that answers late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from airflow_outbox.demo.embedded.airflow_api import AirflowApi, AirflowTimeoutError

TIMEOUT = 0.5


class Late(ThreadingHTTPServer):
    """Answers a login at once, and other requests from the second one on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.ended = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Late

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/auth/token":
            self.server.asked.append(self.command)
            if len(self.server.asked) == 1:
                self.server.ended.wait()
        body = b'{"access_token": "token", "state": "success", "dag_run_id": "run"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = answer

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def late() -> Iterator[Late]:
    with Late() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.ended.set()
        server.shutdown()


@pytest.mark.parametrize(
    ("asked", "call", "answer"),
    [("GET", lambda api: api.run_state("dag", "run"), "success"), ("PATCH", lambda api: api.unpause("dag"), None)],
)
def test_what_only_reads_or_sets_a_state_is_asked_for_again(
    late: Late, asked: str, call: Callable[[AirflowApi], object], answer: object
) -> None:
    with AirflowApi(f"http://127.0.0.1:{late.server_port}", user="u", password="p", timeout=TIMEOUT) as api:
        assert call(api) == answer
    assert late.asked[:2] == [asked, asked]  # more often where the second answer is late, too


def test_what_starts_something_is_asked_for_once_and_waited_for_as_long(late: Late) -> None:
    waits: dict[str, float] = {}

    def note(request: httpx.Request) -> None:
        waits[request.url.path] = request.extensions["timeout"]["read"]

    with AirflowApi(f"http://127.0.0.1:{late.server_port}", user="u", password="p", timeout=TIMEOUT) as api:
        api._client.headers["Authorization"] = "Bearer token"  # a login would be asked for once, too
        api._client.event_hooks["request"].append(note)
        with pytest.raises(AirflowTimeoutError, match="no answer from Airflow to POST /dags/dag/dagRuns in time"):
            api.trigger("dag")
    assert late.asked == ["POST"]
    assert waits["/api/v2/dags/dag/dagRuns"] == 5 * TIMEOUT
