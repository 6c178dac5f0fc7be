"""The permissions that `check` asks of Kafka are enough, and each of them is needed."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from secure.broker import PLAIN_PASSWORD, PLAIN_USER, Acl, SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import COMMAND, PATIENCE, make_topic, wait_until

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


def run(outbox: SecureOutbox, tmp_path: Path, *arguments: str, status: int = 0) -> str:
    file = tmp_path / "command.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    command, *options = arguments
    group = [command, options.pop(0)] if command in ("clusters", "positions") else [command]
    done = CliRunner().invoke(main, [*group, "-f", str(file), *options])
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


@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
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
    assert f"created topic {made[-1].name}\n" in run(outbox, tmp_path, "init")
    topics = {create.name for create in made}
    # Brokers hear of it later.
    wait_until(lambda: topics <= secure.administrator.list_topics(timeout=PATIENCE).topics.keys())
    said = run(outbox, tmp_path, "check")
    assert "missing" not in said
    assert "not known" not in said
    if delivery == "exactly_once":  # the list does not ask for a right on the whole cluster
        assert "not checked: transaction.partition.verification.enable" in said
        assert "not checked: topic __transaction_state: Kafka does not allow DESCRIBE" in said
    [leader_topic] = [create.name for create in made if create.name.endswith(".leader")]
    # Records that can't be written are parked, and a leader that isn't heard publishes at first: these come last.
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
                # A leader that isn't heard steps down only after the heartbeat timeout.
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
    assert process.failures == []
    assert "does not allow" not in said_by(process)
    assert outbox.by_key() == {f"k{n}": [n, n + 10] for n in range(10)}


def said_by(process: Any) -> str:
    reasons = [why["reason"] for event in process.events if event["event"] == "parked" for why in event["reasons"]]
    errors = [event["error"] for event in process.events if event["event"] == "error"]
    return "".join([*reasons, *errors]) + str(process.log.read_text())


def test_the_list_is_enough_for_four_shards(
    make_outbox: MakeOutbox, secure: SecureKafka, start: Start, tmp_path: Path
) -> None:
    outbox = make_outbox(allowed=False)
    outbox.settings["shards"] = 4
    run(outbox, tmp_path, "init", status=1)  # which may make no topic
    secure.make_topic(outbox.leader_topic)
    secure.make_topic(outbox.settings["ledger_topic"])  # with one partition: more have to be added
    outbox.stash(40, keys=40)
    secure.allow(outbox.user, [acl for _, _, acl in parsed(run(outbox, tmp_path, "check", "--acls", "table"))])
    assert "has 4 shards" in run(outbox, tmp_path, "init")
    wait_until(
        lambda: "missing" not in CliRunner().invoke(main, ["check", "-f", str(tmp_path / "command.yaml")]).output
    )
    process = start(outbox)
    wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
    for shard in range(4):
        process.wait_for("took_over", shard=shard)
    assert process.failures == []
    assert "does not allow" not in said_by(process)


def test_the_list_of_each_of_two_clusters_is_enough(
    make_outbox: MakeOutbox, secure: SecureKafka, kafka: EmbeddedKafka, start: Start, tmp_path: Path
) -> None:
    """The backup asks for permissions, also when it becomes the primary."""
    outbox = make_outbox(allowed=False)
    for name in ("leader_topic", "leader_group_id", "ledger_topic", "transactional_id"):
        del outbox.settings[name]
    outbox.settings["clusters"] = {
        "primary": {"bootstrap.servers": kafka.bootstrap},
        "west": outbox.settings.pop("kafka"),
    }
    assert "cluster west: Kafka does not allow CREATE on topic" in run(outbox, tmp_path, "init", status=1)
    outbox.stash(10)
    missing = f"cluster primary: records wait for topic {outbox.topic}, which does not exist. Create it"
    assert missing in run(outbox, tmp_path, "check", status=1)
    make_topic({"bootstrap.servers": kafka.bootstrap}, outbox.topic)
    of_primary, of_west = re.split("cluster west:\n", run(outbox, tmp_path, "check", "--acls", "table"))
    assert [acl for _, _, acl in parsed(of_primary.removeprefix("cluster primary:\n"))] == [
        acl for _, _, acl in parsed(of_west)
    ]
    secure.allow(outbox.user, [acl for _, _, acl in parsed(of_west)])
    assert '"outbox" is published to cluster west, too' in run(outbox, tmp_path, "init")
    wait_until(
        lambda: "missing" not in CliRunner().invoke(main, ["check", "-f", str(tmp_path / "command.yaml")]).output
    )
    process = start(outbox)
    wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
    run(outbox, tmp_path, "clusters", "promote", "west")
    outbox.stash(10, start=10)
    wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
    assert outbox.by_key() == {f"k{n}": [n, n + 10] for n in range(10)}
    assert "does not allow" not in said_by(process)


def test_the_list_is_enough_for_positions_and_each_entry_is_needed(
    make_outbox: MakeOutbox, secure: SecureKafka, kafka: EmbeddedKafka, start: Start, tmp_path: Path
) -> None:
    """A group that reads on the primary, of which anybody may do anything, follows to a cluster with permissions."""
    outbox = make_outbox(allowed=False)
    for name in ("leader_topic", "leader_group_id", "ledger_topic", "transactional_id"):
        del outbox.settings[name]
    primary = {"bootstrap.servers": kafka.bootstrap}
    outbox.settings["clusters"] = {"primary": primary, "west": outbox.settings.pop("kafka")}
    outbox.settings["positions"] = {"enabled": True, "groups": [f"{outbox.user}-*"], "interval": 0.2}
    run(outbox, tmp_path, "init", status=1)  # which may make no topic on one of the two
    make_topic(primary, outbox.topic)
    outbox.stash(10)
    _, of_west = re.split("cluster west:\n", run(outbox, tmp_path, "check", "--acls", "table"))
    acls = {acl: purpose for _, purpose, acl in parsed(of_west)}
    secure.allow(outbox.user, acls)
    run(outbox, tmp_path, "init")

    def says() -> str:
        return CliRunner().invoke(main, ["check", "-f", str(tmp_path / "command.yaml")]).output

    wait_until(lambda: "missing" not in says())
    for acl, purpose in acls.items():
        if acl.name.endswith(".extents") and purpose == "harvest":
            with secure.without(outbox.user, acl):
                missing = f"missing: cluster west: Kafka does not allow {acl.operation} on topic {acl.name}."
                wait_until(lambda missing=missing: missing in says(), doing=missing)  # type: ignore[misc]
    process = start(outbox)
    wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
    process.wait_for("positions_started")
    group = f"{outbox.user}-readers"
    reader = Consumer({**primary, "group.id": group, "enable.auto.commit": False})
    offsets = itertools.cycle([1, 0])

    def commits() -> None:
        """The group moves in some partition that has records, so that its position is due again."""
        reader.commit(offsets=[TopicPartition(outbox.topic, 0, next(offsets))], asynchronous=False)

    def follows() -> bool:
        return f"{group}: primary; west is in step" in run(outbox, tmp_path, "positions", "status")

    commits()
    wait_until(follows, doing=lambda: said_by(process))
    assert "does not allow" not in said_by(process)
    [copies] = {acl.name for acl, purpose in acls.items() if purpose == "positions" and ".positions." in acl.name}
    refused = {f"{outbox.user}-*": group, copies: copies.removesuffix("*") + group, outbox.topic: outbox.topic}
    needed = [acl for acl, purpose in acls.items() if purpose == "positions"]
    assert {acl.name for acl in needed} == refused.keys()
    for acl in needed:
        said = f"cluster west: Kafka does not allow {acl.operation} on {acl.kind} {refused[acl.name]}."

        def is_told(said: str = said) -> bool:
            commits()
            return said in said_by(process)

        with secure.without(outbox.user, acl):
            wait_until(is_told, doing=lambda said=said: f"{said}: {said_by(process)}")  # type: ignore[misc]
            outbox.stash(3, start=10)
            wait_until(lambda: outbox.left() == 0)  # it stops no harvest
        commits()
        wait_until(follows, doing=lambda: said_by(process))
    reader.close()
    shown = r"positions: groups: 1 following, \d+ failures"
    wait_until(lambda: re.search(shown, run(outbox, tmp_path, "status")) is not None)


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
