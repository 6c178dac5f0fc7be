"""OutboxHarvestTrigger, over scripts in the place of the harvesting process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.definitions.asset import AssetWatcher
from airflow.triggers.base import TriggerEvent
from support.harvesting import PATIENCE
from unit.conftest import PASSWORD, Connect

from airflow_outbox.triggers import harvest, supervision
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

pytestmark = pytest.mark.usefixtures("connections")
Child = Callable[[str], None]

STARTED = "sys.stdin.readline(); tell('started', outbox='outbox', outbox_id='u', pid=os.getpid())\n"
DRAINED = "tell('ended', reason='drained', published=3)"


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)


@pytest.fixture
def xcoms(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def set_xcom(**xcom: Any) -> None:
        found.append(xcom)

    monkeypatch.setattr(harvest, "set_xcom", set_xcom)
    return found


@pytest.fixture
def others() -> set[psutil.Process]:
    """The children that this process had before the test, such as the session's servers."""
    return set(psutil.Process().children())


def text(*parts: str) -> str:
    return "".join(parts)


async def payloads(trigger: OutboxHarvestTrigger) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE):
        return [event.payload async for event in events(trigger)]


async def events(trigger: OutboxHarvestTrigger) -> AsyncIterator[TriggerEvent]:
    async for event in trigger.run():
        yield event
    await trigger.cleanup()


def test_it_is_the_same_after_a_journey_through_the_database() -> None:
    trigger = OutboxHarvestTrigger(
        postgres_conn_id="p",
        kafka_conn_id="k",
        outbox="s.o",
        until="drained",
        settings={"leader_topic": "t"},
        emit="end",
        alert_callback="alerts.tell",
    )
    path, arguments = trigger.serialize()
    assert path == f"{OutboxHarvestTrigger.__module__}.{OutboxHarvestTrigger.__qualname__}"
    assert OutboxHarvestTrigger(**arguments).serialize() == (path, arguments)
    assert arguments == {
        "postgres_conn_id": "p",
        "kafka_conn_id": "k",
        "outbox": "s.o",
        "until": "drained",
        "settings": {"leader_topic": "t"},
        "emit": "end",
        "alert_callback": "alerts.tell",
    }


def test_an_asset_can_be_watched_with_it() -> None:
    assert AssetWatcher(name="outbox", trigger=OutboxHarvestTrigger()).trigger.serialize()[1]["emit"] == "published"


async def test_a_deferred_task_gets_one_event_with_the_sum(child: Child) -> None:
    child(text(STARTED, "tell('progress', published=2, topics={'t': 2})\n", DRAINED))
    assert await payloads(OutboxHarvestTrigger(until="drained", emit="end")) == [
        {"status": "ended", "reason": "drained", "published": 3, "topics": {"t": 2}}
    ]


async def test_its_progress_is_an_xcom_of_the_task(
    child: Child, xcoms: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark, set_xcom = tmp_path / "set", harvest.set_xcom

    async def set_and_mark(**xcom: Any) -> None:
        await set_xcom(**xcom)
        mark.touch()

    monkeypatch.setattr(harvest, "set_xcom", set_and_mark)
    waits = f"while not os.path.exists({str(mark)!r}): time.sleep(0.01)\n"
    shown = "tell('progress', standing='leading', view='v', published=2, in_flight=1, rate=2.0, topics={'t': 2})\n"
    child(text(STARTED, shown, waits, DRAINED))
    trigger = OutboxHarvestTrigger(emit="end")
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=4, try_number=1)
    await payloads(trigger)
    value = {"standing": "leading", "view": "v", "published": 2, "in_flight": 1, "rate": 2.0}
    where = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": 4}
    assert xcoms == [{"key": "progress", "value": value, **where}]


async def test_its_counts_are_metrics(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, ...]] = []
    stats = SimpleNamespace(
        incr=lambda name, count=1, *, tags: sent.append((name, count, tags)),
        gauge=lambda name, value, *, tags: sent.append((name, value, tags)),
    )
    monkeypatch.setattr("airflow_outbox.triggers.stats.metrics", lambda: stats)
    measured = "tell('measured', metrics={'in_flight': 4}, verdict={'state': 'healthy'})\n"
    child(text(STARTED, "tell('progress', published=3, topics={'a': 2, 'b': 1})\n", measured, DRAINED))
    await payloads(OutboxHarvestTrigger(emit="end"))
    assert sent == [
        ("outbox.published", 2, {"outbox": "outbox", "topic": "a"}),
        ("outbox.published", 1, {"outbox": "outbox", "topic": "b"}),
        ("outbox.in_flight", 4.0, {"outbox": "outbox"}),
    ]


@pytest.mark.usefixtures("no_delay")
async def test_its_progress_says_that_nobody_sees_the_outbox_while_there_is_no_process(
    child: Child, xcoms: list[dict[str, Any]], tmp_path: Path
) -> None:
    mark = tmp_path / "died"
    dies = f"if not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w'); os.kill(os.getpid(), 9)\n"
    child(text(STARTED, dies, DRAINED))
    trigger = OutboxHarvestTrigger(emit="end")
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
    await payloads(trigger)
    [shown] = xcoms
    assert shown["value"]["verdict"] == {
        "state": "unknown",
        "cause": "the harvesting process was killed by signal 9",
        "since": None,
        "remedy": "",
    }


async def test_an_api_server_that_hangs_does_not_hold_up_the_harvest(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def set_xcom(**_: Any) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(harvest, "set_xcom", set_xcom)
    child(text(STARTED, "tell('progress', published=2, topics={})\n", DRAINED))
    trigger = OutboxHarvestTrigger(emit="end")
    trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
    assert len(await payloads(trigger)) == 1


async def test_an_asset_gets_what_was_published_and_no_event_of_the_end(
    child: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("airflow_outbox.triggers.harvest_report.ASSET_EVENT_INTERVAL", 3600.0)
    seen = tmp_path / "seen"
    told = "tell('progress', published={n}, topics={topics})\n"
    steps = [
        told.format(n=0, topics={}),
        told.format(n=2, topics={"a": 2}),
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n",
        told.format(n=3, topics={"b": 1}),
        told.format(n=4, topics={"a": 1}),
    ]
    child(text(STARTED, *steps, "tell('ended', reason='drained', published=4)"))
    found = []
    async with asyncio.timeout(PATIENCE):
        async for event in events(OutboxHarvestTrigger(until="drained")):
            found.append(event.payload)
            seen.touch()
    assert found == [
        {"outbox": "outbox", "topics": {"a": 2}, "published": 2},
        {"outbox": "outbox", "topics": {"b": 1, "a": 1}, "published": 4},
    ]


@pytest.mark.usefixtures("no_delay")
async def test_a_process_that_dies_is_started_again_and_the_reason_is_logged(
    child: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = tmp_path / "tries"
    crash = f"open({str(tries)!r}, 'a').write('x')\nif len(open({str(tries)!r}).read()) < 8: os.kill(os.getpid(), 9)\n"
    child(text(STARTED, "tell('progress', published=1, topics={'t': 1})\n", crash, DRAINED))
    (payload,) = await payloads(OutboxHarvestTrigger(emit="end"))
    assert payload == {"status": "ended", "reason": "drained", "published": 7 + 3, "topics": {"t": 7 + 1}}
    logged = capsys.readouterr().out
    assert logged.count("the harvesting process was killed by signal 9") == 7
    assert logged.count("the harvesting process restarts in") == 7


@pytest.mark.usefixtures("no_delay")
async def test_a_process_that_was_stopped_by_somebody_else_is_started_again(child: Child, tmp_path: Path) -> None:
    mark = tmp_path / "stopped"
    first = f"if not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w'); "
    stopped = first + "tell('ended', reason='stopped', published=1); sys.exit()\n"
    child(text(STARTED, stopped, DRAINED))
    assert await payloads(OutboxHarvestTrigger(emit="end")) == [
        {"status": "ended", "reason": "drained", "published": 4, "topics": {}}
    ]


@pytest.mark.usefixtures("no_delay")
async def test_a_task_fails_after_four_processes_that_never_harvested(child: Child, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    child(
        f"open({str(tries)!r}, 'a').write('x'); tell('error', error='no outbox. Run init', retry_in=None); sys.exit(1)"
    )
    assert await payloads(OutboxHarvestTrigger(emit="end")) == [{"status": "failed", "error": "no outbox. Run init"}]
    assert tries.read_text() == "xxxx"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"postgres_conn_id": "missing"}, "missing"),
        ({"settings": {"limits": {"mark_records": 0}}}, r"limits.mark_records"),
    ],
)
async def test_a_task_fails_at_once_when_the_configuration_can_not_work(
    arguments: dict[str, Any], problem: str
) -> None:
    (payload,) = await payloads(OutboxHarvestTrigger(emit="end", **arguments))
    assert payload["status"] == "failed"
    assert problem in payload["error"]


@pytest.mark.usefixtures("no_delay")
async def test_a_watched_asset_is_not_given_up(
    connect: Connect, child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    child(text(STARTED, "tell('progress', published=1, topics={'t': 1})\n", DRAINED))
    trigger = OutboxHarvestTrigger(postgres_conn_id="late", until="drained")
    running = asyncio.create_task(payloads(trigger))
    logged = ""
    async with asyncio.timeout(PATIENCE):
        while "the harvesting process restarts in" not in logged:
            await asyncio.sleep(0.01)
            logged += capsys.readouterr().out
    connect("late", conn_type="postgres", host="h", password=PASSWORD)
    assert await running == [{"outbox": "outbox", "topics": {"t": 1}, "published": 1}]


@pytest.mark.parametrize("ignores", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
async def test_the_process_is_gone_after_the_cancellation(
    child: Child, ignores: str, others: set[psutil.Process]
) -> None:
    child(text(ignores, STARTED, "time.sleep(600)"))
    trigger = OutboxHarvestTrigger(emit="end")
    running = asyncio.create_task(payloads(trigger))
    (pid,) = await children(others)
    async with asyncio.timeout(PATIENCE):  # it would sleep for much longer
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await trigger.cleanup()
    assert not psutil.pid_exists(pid)


async def test_cleanup_alone_ends_the_process_too(child: Child, others: set[psutil.Process]) -> None:
    child(text(STARTED, "tell('progress', published=1, topics={'t': 1})\n", "time.sleep(60)"))
    trigger = OutboxHarvestTrigger()
    run = trigger.run()
    await anext(run)  # as when the triggerer is cancelled between two events
    (pid,) = await children(others)
    await trigger.cleanup()
    await trigger.cleanup()
    assert not psutil.pid_exists(pid)
    await run.aclose()


async def children(others: set[psutil.Process]) -> list[int]:
    """The processes that this one has started since, once there is one."""
    while not (found := set(psutil.Process().children()) - others):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    return [process.pid for process in found]
