"""A harvest by the command goes on by a new password, once it is in the file; whoever waits for a ticket, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner
from support.harvesting import COMMAND, PATIENCE, SHORT_SESSION, Outbox, Process, wait_until
from support.leading import Leader
from support.logins import PLACES, rotated_login
from support.served import Served

from airflow_outbox.cli import main
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.many.names import make_list_topics
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.tickets.listener import listener
from airflow_outbox.tickets.published import TicketState
from airflow_outbox.values.verdict import State, Verdict

from .listening import attended, wait


@pytest.mark.parametrize(
    "kind", ["one", pytest.param("two processes", marks=pytest.mark.long), pytest.param("many", marks=pytest.mark.long)]
)
def test_the_file_is_read_again(outbox: Outbox, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "outbox.yaml"
    settings = {**outbox.settings, **({"processes": 2} if kind == "two processes" else {})}
    if kind == "many":
        settings = {name: settings[name] for name in ("data_source", "kafka")} | {"outboxes": ["outbox"]}
        make_list_topics(HarvestConfig.validated(settings, source="test"))
    with rotated_login(outbox.database) as login:
        file.write_text(yaml.safe_dump({**settings, "data_source": login.data_source}))
        process = Process([*COMMAND, "harvest", "-f", str(file)])
        try:
            outbox.stash(10)
            wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
            login.rotate()
            process.wait_for("unreached")
            file.write_text("data_source: [")
            kept = "The harvest goes on as it was"
            wait_until(
                lambda: any(kept in event.get("error", "") for event in process.events if event["event"] == "error")
            )
            outbox.stash(10, start=10)
            file.write_text(yaml.safe_dump({**settings, "data_source": login.data_source}))
            wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
            process.popen.terminate()
            process.ends()
            assert process.popen.returncode == 0
        finally:
            process.end()
    assert sorted(value for values in outbox.by_key().values() for value in values) == list(range(20))


@pytest.mark.parametrize("place", PLACES)
def test_the_verdict(outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Whoever has the old password is told that it is refused; whoever has the new one, that nobody leads."""
    file, secrets = tmp_path / "outbox.yaml", tmp_path / "secrets"
    monkeypatch.setenv("PGSERVICEFILE", str(secrets))
    settings = outbox.settings | {"limits": SHORT_SESSION}

    def look() -> Verdict:
        return read_verdict(HarvestConfig.validated(settings, source="test"))

    def status() -> str:
        """By the file, as the harvester has it. A busy machine may think for a moment that nobody leads."""
        result = CliRunner().invoke(main, ["status", "-f", str(file)])
        wanted = 1 if "UNKNOWN" in result.stdout else 3 if "nobody leads" in result.stderr else 0
        assert result.exit_code == wanted, result.output
        return result.stdout

    with rotated_login(outbox.database) as login:

        def write() -> None:
            data_source = login.write(place, secrets)
            file.write_text(yaml.safe_dump(settings | {"data_source": data_source}))

        write()
        process = Process([*COMMAND, "harvest", "-f", str(file), "--metrics-port", "0"])
        try:
            outbox.stash(10)
            wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
            wait_until(Served(process).is_healthy, doing=lambda: str(Served(process).health()))
            wait_until(lambda: status().startswith("HEALTHY"), doing=status)
            login.rotate()
            refused = "Postgres refuses the login: "
            shown = status()
            assert shown.startswith(f"UNKNOWN: {refused}")
            assert "to do: Check the data source's user, password and database" in shown
            answers: list[tuple[int, dict[str, Any]]] = []

            def is_refused() -> bool:
                answers.append(Served(process).health())
                return refused in answers[-1][1]["cause"]

            wait_until(is_refused, doing=lambda: str(process.events))
            code, told = answers[-1]
            assert (code, told["state"]) == (503, "unknown")
            assert told["remedy"] == "Check the data source's user, password and database"
            process.wait_for("verdict", state="unknown")
            outbox.stash(10, start=10)
            wait_until(lambda: look().state is State.NO_LEADER, doing=lambda: str(look()))
            assert f":{process.popen.pid} was last heard from" in look().cause
            assert look().remedy == "Look at that process, or start another harvester"
            write()
            wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
            wait_until(lambda: look().state is State.HEALTHY, doing=lambda: str(look()))
            wait_until(lambda: status().startswith("HEALTHY"), doing=status)
            wait_until(Served(process).is_healthy, doing=lambda: str(process.events))
        finally:
            process.end()


@pytest.mark.long
def test_what_is_left_behind_does_not_grow_with_each_change(outbox: Outbox, tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    with rotated_login(outbox.database) as login:

        def write() -> None:
            file.write_text(yaml.safe_dump({**outbox.settings, "data_source": login.data_source}))

        write()
        process = Process([*COMMAND, "harvest", "-f", str(file)])
        left = []
        try:
            for _ in range(6):
                outbox.stash(10)
                wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
                member = psutil.Process(process.popen.pid)
                left.append((member.num_threads(), member.num_fds()))
                login.rotate()
                write()
                seen = len(process.events)
                wait_until(lambda seen=seen: any(event["event"] == "started" for event in process.events[seen:]))
        finally:
            process.end()
    threads, descriptors = zip(*left, strict=True)
    assert max(threads[2:]) < threads[1] + 5, left
    assert max(descriptors[2:]) < descriptors[1] + 5, left


async def test_a_listener_asks_for_the_login_again(database: str, leader: Leader) -> None:
    with rotated_login(database) as login:
        listening = await listener(lambda: login.data_source)
        waiting = asyncio.create_task(wait(listening, leader.stash()))
        await attended(listening)
        login.rotate()
        leader.beat()
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).state is TicketState.PUBLISHED
        assert await listener(lambda: login.data_source) is listening
