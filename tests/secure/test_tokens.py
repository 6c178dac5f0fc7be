"""Tokens that live for seconds: harvesting goes on over their expiry, however they come; and what is said without."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from secure.broker import SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from secure.jws import unsigned
from support.harvesting import Process, wait_until

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.oauth import FetchedTokens, TokenError
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

LIFE = 15.0
"""Seconds: a busy machine has begun to use a token long before it expires."""
LIVES = 3
RELAYED = 1.5 * LIFE
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


def tell_token(process: Process, user: str, life: float) -> float:
    token, expires_at = unsigned(user, life)
    process.tell({"token": token, "expires_at": expires_at, "principal": user, "extensions": {}})
    return expires_at


async def triggered(trigger: OutboxHarvestTrigger) -> list[dict[str, Any]]:
    return [event.payload async for event in trigger.run()]


def given(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*.token")]


async def test_tokens_that_expire(
    make_outbox: MakeOutbox,
    secure: SecureKafka,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Three stories at once, because each has to wait for tokens to expire."""
    command, triggered, relayed, fetched, *three = (make_outbox() for _ in range(7))
    for name, outbox in (("command", command), ("triggered", triggered), ("fetched", fetched)):
        by_token(outbox, secure, tmp_path / name, life=LIFE)
    for outbox in (relayed, *three):
        by_token(outbox, secure)
    connect(triggered, monkeypatch)
    printed = await asyncio.gather(
        goes_on_over_several_expiries(command, triggered, start, tmp_path),
        asyncio.to_thread(without_new_tokens_it_says_why_and_goes_on_when_they_come, relayed, fetched, start, tmp_path),
        asyncio.to_thread(waits_for_the_first_token_but_not_for_ever, three, start),
    )
    everything = "".join(capfd.readouterr()) + "".join(filter(None, printed))
    assert "progress" in everything
    tokens = [token for name in ("command", "triggered", "fetched") for token in given(tmp_path / name)]
    assert not any(token in everything for token in tokens)


def connect(outbox: SecureOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Airflow's default connections lead to the outbox."""
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", "secure.jws.source")
    kafka = {"conn_type": "kafka", "extra": outbox.settings["kafka"]}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    parameters = conninfo_to_dict(outbox.database)
    postgres = {
        "conn_type": "postgres",
        "host": parameters["host"],
        "port": int(parameters["port"]),
        "schema": parameters["dbname"],
        "login": parameters["user"],
        "password": parameters["password"],
    }
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(postgres))


async def goes_on_over_several_expiries(
    by_command: SecureOutbox, by_trigger: SecureOutbox, start: Start, folder: Path
) -> str:
    outboxes = {"command": by_command, "triggered": by_trigger}
    command = start(by_command, environment={"PYTHONPATH": str(TESTS)})
    trigger = OutboxHarvestTrigger(
        settings={name: value for name, value in by_trigger.settings.items() if name not in ("data_source", "kafka")},
        emit="end",
    )
    running = asyncio.create_task(triggered(trigger))
    count = 0

    async def publish_one_each() -> None:
        nonlocal count
        for each in outboxes.values():
            await asyncio.to_thread(each.stash, 1, start=count)
        count += 1
        for each in outboxes.values():
            await asyncio.to_thread(wait_until, lambda each=each: each.left() == 0, doing=lambda: errors(command))

    while not all(len(given(folder / name)) > LIVES for name in outboxes):
        await publish_one_each()
        await asyncio.sleep(1)
    await asyncio.sleep(LIFE)  # all that were given before are expired
    await publish_one_each()
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await trigger.cleanup()
    command.popen.terminate()
    command.ends()
    for each in outboxes.values():
        assert [number for _, number in sorted(each.published(), key=lambda record: record[1])] == list(range(count))
    assert command.log is not None
    return json.dumps(command.events) + command.log.read_text()


def without_new_tokens_it_says_why_and_goes_on_when_they_come(
    relayed: SecureOutbox, fetched: SecureOutbox, start: Start, folder: Path
) -> None:
    child = start(relayed, child=True, relays_tokens=True)
    expires_at = tell_token(child, relayed.user, RELAYED)
    command = start(fetched, environment={"PYTHONPATH": str(TESTS)})

    def lead() -> bool:
        nonlocal expires_at
        if time.time() > expires_at - LIFE:  # a busy machine takes long to start them
            expires_at = tell_token(child, relayed.user, RELAYED)
        return all(process.newest_progress.get("view") for process in (child, command))

    wait_until(lead, doing=lambda: errors(child) + errors(command))
    (folder / "fetched" / "away").touch()
    child.tell({"token_error": "the issuer is away"})
    for process in (child, command):
        wait_until(lambda process=process: "the issuer is away" in errors(process), doing=errors(process))
    time.sleep(max(LIFE, expires_at - time.time()) + 0.5)
    for outbox in (relayed, fetched):
        outbox.stash(10)
    time.sleep(2)
    for outbox in (relayed, fetched):
        assert outbox.left() == 10, "who has only an expired token is not let in"
    (folder / "fetched" / "away").unlink()
    tell_token(child, relayed.user, 600)
    for outbox, process in ((relayed, child), (fetched, command)):
        # librdkafka asks again ten seconds after a failure, and then the group has to take the member back.
        wait_until(lambda outbox=outbox: outbox.left() == 0, doing=errors(process))


def errors(process: Process) -> str:
    return "\n".join(event["error"] for event in process.events if event["event"] == "error")


def waits_for_the_first_token_but_not_for_ever(outboxes: list[SecureOutbox], start: Start) -> None:
    patient, _, expired = outboxes
    processes = [start(outbox, child=True, relays_tokens=True) for outbox in outboxes]
    token, expires_at = unsigned(expired.user, -5)
    processes[1].tell({"token_error": "no such role"})
    processes[2].tell({"token": token, "expires_at": expires_at})
    time.sleep(2)
    tell_token(processes[0], patient.user, 600)
    processes[0].wait_for("view")
    for process, why in zip(processes[1:], ("no such role", "the new token expired"), strict=True):
        process.ends()
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
        with pytest.raises(ConfigurationError, match=rf"oauth_cb: can't import the function {path}"):
            config(path)
    with pytest.raises(ConfigurationError, match=r"secure\.jws\.base64 is not a function"):
        config("secure.jws.base64")
    assert isinstance(config("secure.jws.source").kafka["oauth_cb"], FetchedTokens)
    secret = "s3cret"
    for answer in (secret, (secret,), (secret, "soon"), (secret, 1.0), (1, 2, 3, 4, 5)):
        with pytest.raises(TokenError) as error:
            FetchedTokens(lambda _, answer=answer: answer)("")
        assert secret not in str(error.value)
