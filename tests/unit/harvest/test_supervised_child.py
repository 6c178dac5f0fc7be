"""HarvestChild, over scripts in the place of the harvesting process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.harvesting import PATIENCE, wait_until
from unit.conftest import Script

from airflow_outbox.harvest import supervised_child
from airflow_outbox.harvest.supervised_child import END_SECONDS, LONGEST_LINE, HarvestChild

CONFIG = {"data_source": "password=secret-5K", "kafka": {}}


async def all_events(child: HarvestChild) -> list[dict[str, Any]]:
    return [event async for event in child.events()]


async def test_the_first_line_of_stdin_is_the_configuration_and_stdin_stays_open(script: Script) -> None:
    command = script(
        """
        tell("given", line=json.loads(sys.stdin.readline()))
        import select
        tell("open", closed=bool(select.select([sys.stdin], [], [], 0.2)[0]))
        """
    )
    child = await HarvestChild.start(CONFIG, until="drained", command=command)
    events = await all_events(child)
    await child.end()
    assert events == [
        {"event": "given", "line": {"config": CONFIG, "until": "drained"}},
        {"event": "open", "closed": False},
    ]
    assert child.status == 0


async def test_neither_arguments_nor_environment_hold_anything_of_airflow(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", "postgres://app:secret-5K@h/d")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgres://airflow:secret-5K@h/d")
    child = await HarvestChild.start(CONFIG, until="forever", command=script("tell('begun'); time.sleep(60)"))
    try:
        await anext(child.events())
        process = psutil.Process(child.pid)
        assert "secret-5K" not in " ".join(process.cmdline())
        environment = process.environ()
        assert not [name for name in environment if name.startswith(("AIRFLOW", "_AIRFLOW"))]
        assert environment["PATH"] == os.environ["PATH"]
    finally:
        await child.end()


async def test_lines_may_be_long_partial_or_no_events_at_all(script: Script) -> None:
    command = script(
        f"""
        tell("long", text="x" * 300_000)
        for part in ('{{"event": "in', ' parts"', '}}\\n', '\\n', 'no JSON\\n', '[1]\\n', '{{"no": "event"}}\\n'):
            sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.02)
        sys.stderr.write("Traceback\\n"); sys.stderr.flush()
        sys.stdout.buffer.write(b"\\xff\\n")
        sys.stdout.write("y" * {LONGEST_LINE + 5000} + "\\n")
        tell("after")
        sys.stdout.write('{{"event": "last, without an end"}}')
        """
    )
    child = await HarvestChild.start(CONFIG, until="forever", command=command)
    events = await all_events(child)
    await child.end()
    assert events[0] == {"event": "long", "text": "x" * 300_000}
    assert [event["event"] for event in events[1:]] == ["in parts", *["output"] * 6, "after", "last, without an end"]
    assert [event["line"] for event in events[2:7]] == ["no JSON", "[1]", '{"no": "event"}', "Traceback", "\ufffd"]
    assert events[7]["line"] == "y" * LONGEST_LINE


@pytest.mark.parametrize(
    ("habit", "status"),
    [
        ("sys.stdin.read()", 0),
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); tell('ready'); time.sleep(600)", 0),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('ready'); time.sleep(600)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSTOP)", -signal.SIGKILL),
    ],
    ids=["at the end of stdin", "at SIGTERM", "never by itself", "stopped"],
)
async def test_it_is_gone_however_it_ends(
    script: Script, habit: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that don't end by themselves are killed within a second."""
    assert END_SECONDS < 1
    if status == 0:  # however long a busy machine takes
        monkeypatch.setattr(supervised_child, "END_SECONDS", PATIENCE)
    command = script(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.readline(); tell('begun'); {habit}")
    child = await HarvestChild.start(CONFIG, until="forever", command=command)
    events = child.events()
    await anext(events)
    if "ready" in habit:
        await anext(events)
    async with asyncio.timeout(PATIENCE):  # it would sleep for longer
        await child.end()
    assert child.status == status
    assert not psutil.pid_exists(child.pid)
    await child.end()  # once more does nothing


async def test_an_end_that_is_cancelled_still_kills(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_child, "END_SECONDS", 10 * PATIENCE)
    command = script("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('begun'); time.sleep(600)")
    child = await HarvestChild.start(CONFIG, until="forever", command=command)
    await anext(child.events())
    ending = asyncio.create_task(child.end())
    await asyncio.sleep(0.1)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    async with asyncio.timeout(PATIENCE):
        while child.status is None:
            await asyncio.sleep(0.01)
    assert child.status == -signal.SIGKILL


async def test_a_process_that_is_dead_before_it_reads_is_no_error(script: Script) -> None:
    child = await HarvestChild.start({"padding": "x" * 500_000}, until="forever", command=script("os._exit(3)"))
    assert await all_events(child) == []
    await child.end()
    assert child.status == 3


def test_it_dies_with_a_supervisor_that_is_killed(script: Script, tmp_path: Path) -> None:
    child_command = script("sys.stdin.readline(); tell('begun'); sys.stdin.read()")
    supervisor = tmp_path / "supervisor.py"
    supervisor.write_text(
        "import asyncio, json, sys\n"
        "from airflow_outbox.harvest.supervised_child import HarvestChild\n"
        "async def main():\n"
        "    child = await HarvestChild.start({}, until='forever', command=json.loads(sys.argv[1]))\n"
        "    await anext(child.events())\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, str(supervisor), json.dumps(child_command)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    wait_until(lambda: is_gone(pid))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
