"""Alerts: a function of the user's own, called by the triggerer when records are parked, or the verdict is new."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.triggers.alerts import Alerts
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

pytestmark = pytest.mark.usefixtures("connections")
PARKED = {"event": "parked", "topics": {"a": 1}, "refused": 1, "waiting": 0, "reasons": []}
FUNCTIONS = """
import asyncio, threading
called = []
released = threading.Event()
def tell(event): called.append(event)
async def tell_by_and_by(event):
    await asyncio.sleep(0.01)
    called.append(event)
def fail(event):
    called.append(event)
    raise ValueError("no pager")
def hang(event):
    called.append(event)
    released.wait(600)
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of the calls to the functions of a module `users_alerts`."""
    (tmp_path / "users_alerts.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_alerts", raising=False)
    import users_alerts

    return users_alerts.called  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", ["tell", "tell_by_and_by"])
async def test_the_function_is_called_with_every_event_of_parking(
    called: list[dict[str, Any]], child: Callable[[str], None], function: str
) -> None:
    child(
        "sys.stdin.readline(); tell('started', outbox='outbox', outbox_id='u', pid=os.getpid())\n"
        "tell('parked', refused=1, waiting=2, reasons=[])\n"
        "tell('parked', refused=0, waiting=9, reasons=[])\n"
        "tell('retried', topics={'t': 1}, refused=0, reasons=[])\n"
        "tell('discarded', topics={'t': 1})\n"
        "tell('ended', reason='drained', published=0)"
    )
    trigger = OutboxHarvestTrigger(
        outbox="app.outbox", until="drained", emit="end", alert_callback=f"users_alerts.{function}"
    )
    async with asyncio.timeout(PATIENCE):
        assert (await anext(trigger.run())).payload["status"] == "ended"
    await trigger.cleanup()
    assert [(event["event"], event["outbox"]) for event in called] == [
        ("parked", "app.outbox"),
        ("retried", "app.outbox"),
        ("discarded", "app.outbox"),
    ]
    assert called[0]["waiting"] == 2


async def test_the_function_is_called_when_the_verdict_changes(called: list[dict[str, Any]]) -> None:
    alerts = Alerts("users_alerts.tell", lambda *_: None)
    for state in ("healthy", "healthy", "lagging", "stalled", "healthy", "healthy"):
        alerts.tell({"event": "verdict", "state": state})
    await alerts.finish(PATIENCE)
    assert [event["state"] for event in called] == ["lagging", "stalled", "healthy"]


@pytest.mark.parametrize(
    ("path", "problem"), [("users_alerts.fail", "no pager"), ("users_alerts.none", "none"), ("nowhere.none", "nowhere")]
)
async def test_what_goes_wrong_is_logged_and_the_next_event_comes_all_the_same(
    called: list[dict[str, Any]], path: str, problem: str
) -> None:
    logged: list[str] = []
    alerts = Alerts(path, lambda _, text: logged.append(text))
    for _ in range(2):
        alerts.tell(PARKED)
    await alerts.finish(PATIENCE)
    assert len(logged) == 2
    assert problem in logged[0]
    assert len(called) == (2 if path.endswith("fail") else 0)


async def test_a_function_that_takes_long_holds_up_nothing_and_the_oldest_events_are_dropped(
    called: list[dict[str, Any]],
) -> None:
    alerts = Alerts("users_alerts.hang", print)
    alerts.tell(PARKED)
    async with asyncio.timeout(PATIENCE):
        while not called:
            await asyncio.sleep(0.01)
    for _ in range(1000):
        alerts.tell(PARKED)
    await alerts.finish(0.1)
    alerts.cancel()
    assert len(called) == 1  # it has not returned yet
    assert len(alerts._waiting) == 100
    sys.modules["users_alerts"].released.set()


@pytest.mark.parametrize(
    "path",
    [
        "tell",
        "",
        "my-package.tell",
        "a..b",
        "a.b:c",
        test_what_goes_wrong_is_logged_and_the_next_event_comes_all_the_same,
    ],
)
def test_what_can_be_no_import_path_is_refused_when_the_dag_is_read(path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"my_package\.alerts\.tell"):
        OutboxHarvestSensor(task_id="harvest", alert_callback=path)


def test_the_sensor_passes_it_on() -> None:
    from airflow.providers.common.compat.sdk import TaskDeferred

    sensor = OutboxHarvestSensor(task_id="harvest", alert_callback="users_alerts.tell")
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert deferred.value.trigger.serialize()[1]["alert_callback"] == "users_alerts.tell"
