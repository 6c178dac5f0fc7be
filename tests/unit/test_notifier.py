"""The example of a notifier, with a chat room of our own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.harvesting import PATIENCE
from unit.conftest import Connect

from airflow_outbox.triggers.alerts import Alerts

DAGS = Path(__file__).resolve().parents[2] / "dags"
PARKED = {"event": "parked", "outbox": "shop.outbox", "topics": {"orders": 2}, "refused": 2, "waiting": 0}


@pytest.fixture
def alerts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DAGS)
    monkeypatch.delitem(sys.modules, "outbox_alerts", raising=False)
    import outbox_alerts

    return outbox_alerts


@pytest.fixture
def posted(connect: Connect) -> Iterator[list[Any]]:
    """The posts to the room's webhook."""
    found: list[Any] = []

    class Room(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Room) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        connect("outbox_chat", conn_type="http", password=f"http://127.0.0.1:{server.server_port}/hook")
        yield found
        server.shutdown()
        serving.join()


@pytest.mark.usefixtures("alerts")
async def test_a_change_is_posted_once(posted: list[Any]) -> None:
    logged: list[str] = []
    callback = Alerts("outbox_alerts.tell", lambda _, text: logged.append(text))
    callback.tell({**PARKED, "reasons": [{"cause": "unknown_topic", "reason": "no such topic", "records": 2}]})
    callback.tell({**PARKED, "event": "retried", "reasons": []})  # refused again
    callback.tell({**PARKED, "event": "retried", "refused": 0, "reasons": []})
    callback.tell({**PARKED, "event": "discarded"})
    stalled = {
        "event": "verdict",
        "outbox": "shop.outbox",
        "state": "stalled",
        "cause": "no Kafka",
        "remedy": "Start it",
    }
    callback.tell(stalled)
    callback.tell({**stalled, "state": "healthy", "cause": "a:1 leads", "remedy": ""})
    await callback.finish(PATIENCE)
    assert posted == [
        {"text": "shop.outbox: 2 records of orders are parked: no such topic. See airflow-outbox parked"},
        {"text": "shop.outbox: parked records of orders are published"},
        {"text": "shop.outbox: parked records of orders were discarded"},
        {"text": "shop.outbox is stalled: no Kafka. Start it"},
        {"text": "shop.outbox is healthy: a:1 leads."},
    ]
    assert logged == []


def test_a_task_that_fails_is_posted(alerts: ModuleType, posted: list[Any]) -> None:
    callback = alerts.ChatNotifier(text="{{ ti.task_id }} has failed")
    callback({"ti": SimpleNamespace(task_id="harvest")})
    assert posted == [{"text": "harvest has failed"}]


def test_what_is_not_known_yet_is_named(alerts: ModuleType) -> None:
    assert alerts.message({"event": "of a later release", "outbox": "o"}) == "o: of a later release"
