"""Tokens that live for seconds: harvesting goes on over their expiry, however they come; and what is said without."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harvesting import Process, wait_until
from secure.broker import SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from secure.jws import unsigned

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.tokens import FetchedTokens, TokenError
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

LIFE = 6.0
LIVES = 3
TESTS = Path(__file__).resolve().parents[1]


def by_token(outbox: SecureOutbox, secure: SecureKafka, folder: Path | None = None, *, life: float = LIFE) -> None:
    """Let the outbox's user log in by token; by those of `jws.source` where a folder is given."""
    outbox.settings["kafka"] = secure.token_login()
    if folder is not None:
        folder.mkdir()
        outbox.settings["kafka"] |= {
            "oauth_cb": "secure.jws.source",
            "sasl.oauthbearer.config": f"{outbox.user} {life} {folder}",
        }


def tell_token(process: Process, user: str, life: float) -> None:
    token, expires_at = unsigned(user, life)
    process.tell({"token": token, "expires_at": expires_at, "principal": user, "extensions": {}})


async def triggered(trigger: OutboxHarvestTrigger) -> list[dict[str, Any]]:
    payloads = [event.payload async for event in trigger.run()]
    await trigger.cleanup()
    return payloads


def given(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*.token")]


async def test_harvesting_goes_on_over_several_expiries(
    make_outbox: MakeOutbox,
    secure: SecureKafka,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    end = time.time() + (LIVES + 0.5) * LIFE
    outboxes = {name: make_outbox() for name in ("command", "trigger")}
    for name, outbox in outboxes.items():
        by_token(outbox, secure, tmp_path / name)
    command = start(outboxes["command"], environment={"PYTHONPATH": str(TESTS)})
    outbox = outboxes["trigger"]
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", "secure.jws.source")
    kafka = {"conn_type": "kafka", "extra": outbox.settings["kafka"]}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    parameters = dict(part.split("=") for part in outbox.database.split())
    postgres = {
        "conn_type": "postgres",
        "host": parameters["host"],
        "port": int(parameters["port"]),
        "schema": parameters["dbname"],
        "login": parameters["user"],
    }
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(postgres))
    trigger = OutboxHarvestTrigger(
        until=(datetime.fromtimestamp(end, UTC) + timedelta(seconds=1)).isoformat(),
        settings={"leader_topic": outbox.leader_topic, "leader_group_id": outbox.user},
        emit="end",
    )
    running = asyncio.create_task(triggered(trigger))
    count = 0
    while time.time() < end:
        for each in outboxes.values():
            await asyncio.to_thread(each.stash, 1, start=count)
        count += 1
        await asyncio.sleep(1)
    assert await running == [{"status": "ended", "reason": "time", "published": count}]
    command.popen.terminate()
    command.ends(within=5)
    printed = "".join(capfd.readouterr()) + json.dumps(command.events) + str(command.log and command.log.read_text())
    for name, each in outboxes.items():
        assert each.left() == 0, name
        assert [number for _, number in sorted(each.published(), key=lambda record: record[1])] == list(range(count))
        assert len(given(tmp_path / name)) > LIVES
        assert not any(token in printed for token in given(tmp_path / name))


def test_without_new_tokens_it_says_why_and_goes_on_when_they_come(
    make_outbox: MakeOutbox, secure: SecureKafka, start: Start, tmp_path: Path
) -> None:
    relayed, fetched = make_outbox(), make_outbox()
    by_token(relayed, secure)
    by_token(fetched, secure, tmp_path / "fetched", life=5)
    child = start(relayed, child=True, relays_tokens=True)
    tell_token(child, relayed.user, 5)
    command = start(fetched, environment={"PYTHONPATH": str(TESTS)})
    for process in (child, command):
        process.wait_for("view")
    (tmp_path / "fetched" / "away").touch()
    child.tell({"token_error": "the issuer is away"})
    for process in (child, command):
        wait_until(lambda process=process: "the issuer is away" in errors(process), within=10, doing=errors(process))
    time.sleep(5)
    for outbox in (relayed, fetched):
        outbox.stash(10)
    time.sleep(2)
    for outbox in (relayed, fetched):
        assert outbox.left() == 10, "who has only an expired token is not let in"
    (tmp_path / "fetched" / "away").unlink()
    tell_token(child, relayed.user, 60)
    for outbox, process in ((relayed, child), (fetched, command)):
        wait_until(lambda outbox=outbox: outbox.left() == 0, within=30, doing=errors(process))


def errors(process: Process) -> str:
    return "\n".join(event["error"] for event in process.events if event["event"] == "error")


def test_at_the_start_it_waits_for_a_token_but_not_for_ever(
    make_outbox: MakeOutbox, secure: SecureKafka, start: Start, tmp_path: Path
) -> None:
    patient, hopeless, expired = make_outbox(), make_outbox(), make_outbox()
    for outbox in (patient, hopeless, expired):
        by_token(outbox, secure)
    processes = [start(outbox, child=True, relays_tokens=True) for outbox in (patient, hopeless, expired)]
    token, expires_at = unsigned(expired.user, -5)
    processes[1].tell({"token_error": "no such role"})
    processes[2].tell({"token": token, "expires_at": expires_at})
    time.sleep(2)
    tell_token(processes[0], patient.user, 60)
    processes[0].wait_for("view")
    for process, why in zip(processes[1:], ("no such role", "the token that came expired"), strict=True):
        process.ends(within=20)
        assert process.popen.returncode == 1
        said = errors(process)
        assert why in said
        assert "Check oauth_cb" in said


def test_a_function_of_the_users_that_is_wrong() -> None:
    def config(path: str) -> HarvestConfig:
        return HarvestConfig.validated(
            {"data_source": "", "kafka": {"bootstrap.servers": "b:1", "oauth_cb": path}}, source="test"
        )

    for path in ("no.such.module", "secure.jws.nothing"):
        with pytest.raises(ConfigurationError, match=rf"oauth_cb: no function {path} can be imported"):
            config(path)
    with pytest.raises(ConfigurationError, match=r"secure\.jws\.base64 is no function"):
        config("secure.jws.base64")
    assert isinstance(config("secure.jws.source").kafka["oauth_cb"], FetchedTokens)
    secret = "s3cret"
    for answer in (secret, (secret,), (secret, "soon"), (secret, 1.0), (1, 2, 3, 4, 5)):
        with pytest.raises(TokenError) as error:
            FetchedTokens(lambda _, answer=answer: answer)("")
        assert secret not in str(error.value)
