"""What `check` says that Kafka must allow is enough, and each entry of it is needed."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from secure.broker import PLAIN_PASSWORD, PLAIN_USER, Acl, SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import COMMAND, wait_until

from airflow_outbox.cli import main


def run(outbox: SecureOutbox, tmp_path: Path, *arguments: str, status: int = 0) -> str:
    file = tmp_path / "command.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    command, *options = arguments
    done = CliRunner().invoke(main, [command, "-f", str(file), *options])
    assert done.exit_code == status, done.output
    return done.output


def parsed(table: str) -> list[tuple[str, str, Acl]]:
    """Principal, purpose and permission of every line but the heading."""
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["principal", "resource", "name", "operation", "for"]
    return [
        (principal, purpose, Acl(kind.upper().replace("-", "_"), name, operation))
        for principal, kind, name, operation, purpose in lines[1:]
    ]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_the_list_is_enough_and_each_entry_is_needed(
    make_outbox: MakeOutbox, secure: SecureKafka, start: Start, tmp_path: Path, delivery: str
) -> None:
    outbox = make_outbox(allowed=False)
    for name in ("leader_topic", "leader_group_id", "ledger_topic", "transactional_id"):
        del outbox.settings[name]  # by the outbox's id
    outbox.settings["delivery"] = delivery
    said = run(outbox, tmp_path, "init", status=1)
    assert "Kafka does not allow CREATE on topic airflow-outbox." in said
    assert "check --acls" in said
    outbox.stash(10)
    entries = parsed(run(outbox, tmp_path, "check", "--acls", "table"))
    assert {principal for principal, _, _ in entries} == {f"User:{outbox.user}"}
    acls = {acl: purpose for _, purpose, acl in entries}
    assert Acl("TOPIC", outbox.topic, "WRITE") in acls
    secure.allow(outbox.user, acls)

    def needed(acl: Acl) -> str:
        return f"Kafka does not allow {acl.operation} on {acl.kind} {acl.name}."

    made = [acl for acl, purpose in acls.items() if purpose == "init"]
    for create in made:
        with secure.without(outbox.user, create):
            assert needed(create) in run(outbox, tmp_path, "init", status=1)
    assert f"made topic {made[-1].name}\n" in run(outbox, tmp_path, "init")
    topics = {create.name for create in made}
    wait_until(lambda: topics <= secure.administrator.list_topics(timeout=10).topics.keys())  # brokers hear of it later
    said = run(outbox, tmp_path, "check")
    assert "missing" not in said
    assert "not known" not in said
    if delivery == "exactly_once":  # the list does not ask for a right on the whole cluster
        assert "not checked: transaction.partition.verification.enable" in said
    [leader_topic] = [create.name for create in made if create.name.endswith(".leader")]
    # What can't be written to its topic is parked, and who leads unheard publishes at first: these come last.
    last = [outbox.topic, leader_topic]

    def place(entry: tuple[Acl, str]) -> int:
        acl, purpose = entry
        return last.index(acl.name) if purpose == "harvest" and acl.name in last else -1

    for acl, purpose in sorted(acls.items(), key=place):
        with secure.without(outbox.user, acl):
            if purpose == "harvest":
                if acl.kind != "transactional-id":  # to ask would end a leader's producer
                    assert f"missing: {needed(acl)}" in run(outbox, tmp_path, "check", status=1)
                process = start(outbox)
                wait_until(lambda acl=acl, process=process: needed(acl) in said_by(process), doing=str(acl))
                # Who leads without being heard steps down only after the heartbeat timeout.
                assert outbox.left() == 10 or acl.name in last
                process.popen.terminate()
                process.ends()
            elif purpose == "check":
                assert f"is not known: {needed(acl)}" in run(outbox, tmp_path, "check")
    process = start(outbox)
    for turn in (0, 10):  # the second when it would have stepped down, had nobody heard it
        outbox.stash(turn, start=10)
        wait_until(lambda: outbox.left() == 0, doing=str(process.events))
        wait_until(lambda: outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)])
        time.sleep(3)
    assert "error" not in {event["event"] for event in process.events}
    assert outbox.by_key() == {f"k{n}": [n, n + 10] for n in range(10)}


def said_by(process: Any) -> str:
    reasons = [why["reason"] for event in process.events if event["event"] == "parked" for why in event["reasons"]]
    errors = [event["error"] for event in process.events if event["event"] == "error"]
    return "".join([*reasons, *errors]) + str(process.log.read_text())


def test_the_list_as_commands(make_outbox: MakeOutbox, tmp_path: Path) -> None:
    outbox = make_outbox(allowed=False)
    outbox.make_tables()
    assert "DATA_TOPIC" in run(outbox, tmp_path, "check", "--acls", "table")
    options = ["--topic", outbox.topic, "--topic", "it's another"]
    table = run(outbox, tmp_path, "check", "--acls", "table", *options)
    commands = run(outbox, tmp_path, "check", "--acls", "kafka-acls", *options).splitlines()
    begun = f"kafka-acls --bootstrap-server {outbox.settings['kafka']['bootstrap.servers']} --add "
    assert all(line.startswith(begun) for line in commands)
    found = [shlex.split(line.removeprefix(begun)) for line in commands]
    listed = parsed(table.replace("it's another", "another"))
    assert [
        [option, principal, operation, spelled.upper(), resource, name.replace("it's ", "")]
        for option, principal, operation, spelled, resource, name in found
    ] == [
        [
            "--allow-principal",
            whom,
            "--operation",
            acl.operation.replace("_", ""),
            f"--{acl.kind}",
            acl.name,
        ]
        for whom, _, acl in listed
    ]


def test_goharvests_secure_file(make_outbox: MakeOutbox, tmp_path: Path) -> None:
    outbox = make_outbox()
    outbox.stash(20)
    file = tmp_path / "reaper.yaml"
    kafka = outbox.settings["kafka"]
    harvest = {
        "baseKafkaConfig": kafka,
        "leaderTopic": outbox.leader_topic,
        "leaderGroupID": outbox.user,
        "dataSource": outbox.database,
        "outboxTable": "outbox",
    }
    file.write_text(yaml.safe_dump({"harvest": harvest, "logging": {"level": "Debug"}}))
    command = [*COMMAND, "harvest", "-f", str(file), "--until", "drained"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(outbox.published()) == 20
    assert kafka["sasl.password"] not in done.stdout + done.stderr


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_both_mechanisms(make_outbox: MakeOutbox, secure: SecureKafka, start: Start, mechanism: str) -> None:
    outbox = make_outbox()
    if mechanism == "PLAIN":
        secure.allow(PLAIN_USER, outbox.acls)
        outbox.settings["kafka"] = secure.login(PLAIN_USER, PLAIN_PASSWORD, mechanism="PLAIN")
    outbox.stash(20)
    start(outbox, until="drained", child=True).ends()
    assert len(outbox.published()) == 20
