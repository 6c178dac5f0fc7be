"""Several processes of one trigger, over scripts in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_outbox.triggers import harvest, supervision
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

pytestmark = pytest.mark.usefixtures("connections")

STARTED = "sys.stdin.readline(); tell('started', outbox='outbox', outbox_id='u', pid=os.getpid())\n"
IS_FIRST = """
def is_first():
    try:
        open({mark!r}, 'x').close()
    except FileExistsError:
        return False
    return True
"""
SHOWN = "tell('progress', standing='standby', view=None, published=2, in_flight=1, rate=2.0, topics={'t': 2})\n"
DRAINED = "tell('ended', reason='drained', published=3)"
SILENCE = 5
"""Seconds: longer than a busy machine may keep a process that goes on silent."""


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)


async def payloads(trigger: OutboxHarvestTrigger) -> list[dict[str, Any]]:
    found = [event.payload async for event in trigger.run()]
    await trigger.cleanup()
    return found


async def test_one_that_is_killed_comes_back_and_the_others_go_on(
    child: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dies = "if is_first(): os.kill(os.getpid(), 9)\n"
    waits = f"open({str(tmp_path)!r} + '/went on ' + str(os.getpid()), 'w').close()\n" + (
        f"while len([name for name in os.listdir({str(tmp_path)!r}) if name.startswith('went on')]) < 2:"
        " time.sleep(0.01)\n"
    )
    child(IS_FIRST.format(mark=str(tmp_path / "first")) + STARTED + dies + SHOWN + waits + DRAINED)
    trigger = OutboxHarvestTrigger(until="drained", emit="end", settings={"processes": 2})
    assert await payloads(trigger) == [{"status": "ended", "reason": "drained", "published": 6, "topics": {"t": 4}}]
    logged = capsys.readouterr().out
    assert sum(logged.count(f"process {number} of 2: the harvesting process restarts in 0 s") for number in (1, 2)) == 1


async def test_their_progress_is_one_xcom(child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.triggers.harvest_report.PROGRESS_INTERVAL", 0.0)
    shown: list[dict[str, Any]] = []
    came = asyncio.Event()

    async def set_xcom(*, value: dict[str, Any], **_: Any) -> None:
        shown.append(value)
        if value["published"] == 4:
            came.set()

    monkeypatch.setattr(harvest, "set_xcom", set_xcom)
    child(STARTED + "while True:\n    " + SHOWN + "    time.sleep(0.05)\n")
    trigger = OutboxHarvestTrigger(settings={"processes": 2})
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)
    running = asyncio.create_task(payloads(trigger))
    await came.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert shown[-1] == {"standing": "standby", "view": None, "published": 4, "in_flight": 2, "rate": 4.0}


MEASURED = (
    "tell('measured', metrics={'verdict': {'healthy': 1, 'unknown': 0}},"
    " verdict={'state': 'healthy', 'cause': 'it leads', 'since': None, 'remedy': '', 'notes': []})\n"
)


async def test_of_a_silent_process_everybody_learns_that_nobody_sees_the_outbox_and_that_it_goes_on(
    child: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """It is frozen, as by SIGSTOP."""
    monkeypatch.setattr(supervision, "LONGEST_SILENCE", SILENCE)
    shown: list[str | None] = []
    gauges: dict[str, float] = {}
    alerts: list[dict[str, Any]] = []
    alerted = asyncio.Event()

    async def set_xcom(*, value: dict[str, Any], **_: Any) -> None:
        shown.append(value.get("verdict", {}).get("state"))

    def alert(event: dict[str, Any]) -> None:
        alerts.append(event)
        alerted.set()

    monkeypatch.setattr(harvest, "set_xcom", set_xcom)
    monkeypatch.setattr("airflow_outbox.triggers.alerts.resolve_name", lambda _: alert)
    stats = SimpleNamespace(
        incr=lambda *_, **__: None, gauge=lambda _, value, *, tags: gauges.update({tags.get("state"): value})
    )
    monkeypatch.setattr("airflow_outbox.triggers.stats.metrics", lambda: stats)
    mark = tmp_path / "go on"
    freezes = f"while not os.path.exists({str(mark)!r}): time.sleep(0.01)\n"
    child(STARTED + MEASURED + SHOWN + freezes + MEASURED + SHOWN + DRAINED)
    trigger = OutboxHarvestTrigger(until="drained", emit="end", alert_callback="alerts.tell")
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)
    running = asyncio.create_task(payloads(trigger))
    await alerted.wait()
    [told] = alerts
    assert (told["state"], told["outbox"]) == ("unknown", "outbox")
    assert f"has told nothing for {SILENCE} s" in told["cause"]
    assert f"UNKNOWN: {told['cause']}. To do: {told['remedy']}" in capsys.readouterr().out
    assert gauges["unknown"] == 1
    assert gauges["healthy"] == 0
    mark.touch()
    assert (await running)[0]["status"] == "ended"
    assert [event["state"] for event in alerts] == ["unknown", "healthy"]
    assert shown == ["healthy", "unknown", "healthy"]
    assert (gauges["unknown"], gauges["healthy"]) == (0, 1)
    assert capsys.readouterr().out.count("HEALTHY: it leads") == 1


async def test_while_another_process_sees_the_outbox_nobody_is_alarmed(
    child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(supervision, "LONGEST_SILENCE", SILENCE)
    alerts: list[dict[str, Any]] = []
    monkeypatch.setattr("airflow_outbox.triggers.alerts.resolve_name", lambda _: alerts.append)
    mark, first = tmp_path / "go on", tmp_path / "first"
    told = tmp_path / "the other one tells"
    tells = (
        "frozen = is_first()\n"
        f"while frozen and not os.path.exists({str(told)!r}):\n    {SHOWN}    time.sleep(0.05)\n"
        f"while not os.path.exists({str(mark)!r}):\n"
        f"    if not frozen: {SHOWN}    if not frozen: open({str(told)!r}, 'w').close()\n    time.sleep(0.05)\n"
    )
    child(IS_FIRST.format(mark=str(first)) + STARTED + SHOWN + tells + MEASURED + DRAINED)
    settings = {"processes": 2}
    trigger = OutboxHarvestTrigger(until="drained", emit="end", alert_callback="alerts.tell", settings=settings)
    running = asyncio.create_task(payloads(trigger))
    logged = ""
    while f"has told nothing for {SILENCE} s" not in logged:
        await asyncio.sleep(0.01)
        logged += capsys.readouterr().out
    mark.touch()
    await running
    assert alerts == []


UNREACHED = "tell('unreached', error='Postgres refuses the login')\n"


async def test_a_process_that_can_not_reach_a_server_goes_on_by_the_changed_connection(
    child: Callable[[str], None], connect: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    starts = "given = json.loads(sys.stdin.readline())\ntell('started', outbox='outbox', outbox_id='u', pid=1)\n"
    waits = f"while 'new' not in given['config']['data_source']:\n    {UNREACHED}    time.sleep(0.05)\n"
    child(starts + waits + DRAINED)
    trigger = OutboxHarvestTrigger(until="drained", emit="end")
    running = asyncio.create_task(payloads(trigger))
    while "process 1 harvests" not in capsys.readouterr().out:
        await asyncio.sleep(0.01)
    connect("postgres_default", conn_type="postgres", host="db.example", login="app", password="new")
    assert await running == [{"status": "ended", "reason": "drained", "published": 3, "topics": {}}]
    assert capsys.readouterr().out.count("a connection has changed: the harvesting process starts again by it") == 1


async def test_a_process_is_started_at_once_when_the_connection_has_changed(
    child: Callable[[str], None],
    connect: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody waits an hour after the login was corrected."""
    monkeypatch.setattr(supervision, "FIRST_DELAY", 3600.0)
    monkeypatch.setattr(supervision, "LONGEST_UNREACHED", 3600.0)
    monkeypatch.setattr(supervision, "READ_INTERVAL", 0.05)
    starts = "given = json.loads(sys.stdin.readline())\ntell('started', outbox='outbox', outbox_id='u', pid=1)\n"
    child(starts + "if 'new' in given['config']['data_source']:\n    " + DRAINED + "\nelse:\n    sys.exit(1)\n")
    running = asyncio.create_task(payloads(OutboxHarvestTrigger(until="drained", emit="end")))
    while "restarts in 3600 s" not in capsys.readouterr().out:
        await asyncio.sleep(0.01)
    connect("postgres_default", conn_type="postgres", host="db.example", login="app", password="new")
    assert (await running)[0]["status"] == "ended"


async def test_all_end_when_one_gives_up(child: Callable[[str], None], tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    goes_on = "if is_first(): time.sleep(60)\n"
    fails = "tell('error', error='no such topic', retry_in=None); sys.exit(1)"
    child(IS_FIRST.format(mark=str(tmp_path / "first")) + goes_on + fails)
    trigger = OutboxHarvestTrigger(emit="end", settings={"processes": 2})
    assert await payloads(trigger) == [{"status": "failed", "error": "no such topic"}]
    assert set(psutil.Process().children()) <= before


def test_a_number_that_can_not_be_right_is_left_to_the_process_to_refuse() -> None:
    for processes in ("many", 0, 65):
        assert harvest.process_count({"processes": processes}) == 1
    assert harvest.process_count({"processes": 3}) == 3
