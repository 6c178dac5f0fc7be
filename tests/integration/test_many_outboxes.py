"""Many outboxes in one process, on real servers: one's trouble is not the others', and new ones are found."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo
from support.harvesting import CALM, COMMAND, SHORT_SESSION, Outbox, Process, make_outbox, wait_until

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.many import watch
from airflow_outbox.harvest.many.names import ROLES, make_list_topics, names_of
from airflow_outbox.operate.finding import Severity
from airflow_outbox.operate.many import examine_list
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import Looks, RestingTable
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.values.verdict import Thresholds

LIST = ["shop_*.outbox", "missing.outbox"]
EACH = 40


class Shops:
    """Outboxes in schemas of one database, and processes that harvest all of them."""

    def __init__(self, database: str, bootstrap: str, topic_prefix: str, folder: Path) -> None:
        self.database = database
        self._bootstrap = bootstrap
        self._topic_prefix = topic_prefix
        self._folder = folder
        self._stashed: dict[str, int] = {}
        self.processes: list[Process] = []
        self.files: list[Path] = []

    def make(self, name: str) -> Outbox:
        return make_outbox(
            self.database,
            bootstrap=self._bootstrap,
            topic=f"{self._topic_prefix}{name}",
            outbox_table=f"shop_{name}.outbox",
            limits=SHORT_SESSION,
        )

    def settings(self, **limits: Any) -> dict[str, Any]:
        """The configuration, which still lacks the outboxes."""
        kafka = {"bootstrap.servers": self._bootstrap}
        return {"data_source": self.database, "kafka": kafka, "limits": {**SHORT_SESSION, **limits}}

    def config(self) -> HarvestConfig:
        return HarvestConfig.validated({**self.settings(), "outboxes": LIST}, source="test")

    def start(self, *, by_itself: Outbox | None = None, data_source: str | None = None, **limits: Any) -> Process:
        settings = self.settings(**limits) | {"data_source": data_source or self.database}
        settings |= {"outboxes": LIST} if by_itself is None else {"outbox_table": by_itself.name}
        if by_itself is None:
            make_list_topics(HarvestConfig.validated(settings, source="test"))
        file = self._folder / f"{len(self.processes)}.yaml"
        file.write_text(yaml.safe_dump(settings))
        self.files.append(file)
        process = Process([*COMMAND, "harvest", "-f", str(file)], log=file.with_suffix(".log"))
        self.processes.append(process)
        return process

    @contextmanager
    def harvesting_role(self, outboxes: Sequence[Outbox]) -> Iterator[str]:
        """A login of a role that may harvest these, and nothing more."""
        role = f"harvester_{uuid4().hex[:8]}"
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'".encode())
            try:
                for outbox in outboxes:
                    for line in grant_statements(connection, OutboxName.parse(outbox.name), "harvest", role):
                        connection.execute(line.encode())
                yield make_conninfo(self.database, user=role, password="p")
            finally:
                self.end()
                connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())

    def end(self) -> None:
        for process in self.processes:
            process.end()

    def stash(self, outbox: Outbox, count: int = EACH) -> None:
        start = self._stashed.get(outbox.name, 0)
        outbox.stash(count, keys=4, start=start)
        self._stashed[outbox.name] = start + count

    def all_published(self, outbox: Outbox) -> bool:
        return outbox.left() == 0

    def require_each_once(self, outbox: Outbox) -> None:
        """All that was stashed was published once, and each key's in its order."""
        wait_until(lambda: outbox.left() == 0, doing=lambda: str(self.processes[-1].events[-20:]))
        count = self._stashed[outbox.name]
        assert outbox.by_key() == {f"k{key}": list(range(key, count, 4)) for key in range(4)}

    def member(self, outbox: Outbox) -> str | None:
        [(member,)] = outbox.query(f"SELECT member FROM {outbox.name}_shard")
        return None if member is None else str(member)


@pytest.fixture
def shops(database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Shops]:
    shops = Shops(database, kafka.bootstrap, topic_prefix, tmp_path)
    yield shops
    shops.end()
    for process in shops.processes:
        assert process.log is not None
        print(process.log.read_text())


def about(process: Process, outbox: Outbox) -> Callable[[str], bool]:
    """Whether a process has told some event about an outbox."""

    def told(event: str) -> bool:
        schema, table = outbox.name.split(".")
        wanted = (event, f'"{schema}"."{table}"')
        return any((each["event"], each.get("outbox")) == wanted for each in process.events)

    return told


def test_the_trouble_of_one_is_not_that_of_others_and_new_ones_are_found(shops: Shops) -> None:
    well, halted, poisoned, locked = (shops.make(name) for name in ("well", "halted", "poisoned", "locked"))
    outdated = shops.make("outdated")
    outdated.query("UPDATE shop_outdated.outbox_state SET schema_version = 12")
    halted.query("UPDATE shop_halted.outbox_state SET halted = 'somebody has restored a backup'")
    for outbox in (halted, poisoned, locked, outdated):
        shops.stash(outbox)
    with psycopg.connect(shops.database) as connection:
        stash(connection, OutboxRecord("no.such.topic", "k", "v"), outbox=poisoned.name)
    with psycopg.connect(shops.database) as holder:
        holder.execute("LOCK TABLE shop_locked.outbox")
        process = shops.start(session_timeout=12, heartbeat_timeout=10)
        process.wait_for("error", outbox="missing.outbox")
        process.wait_for("error", outbox='"shop_locked"."outbox"')
        process.wait_for("error", outbox='"shop_halted"."outbox"')
        process.wait_for("error", outbox='"shop_outdated"."outbox"')
        parked = "SELECT kafka_topic FROM shop_poisoned.outbox_parked"
        wait_until(lambda: poisoned.query(parked) == [("no.such.topic",)])
        shops.require_each_once(poisoned)
        shops.stash(well)
        shops.require_each_once(well)
    shops.require_each_once(locked)
    assert (halted.left(), outdated.left()) == (EACH, EACH)
    late = shops.make("late")
    shops.stash(late)
    shops.require_each_once(late)
    halted.query("UPDATE shop_halted.outbox_state SET halted = NULL")
    shops.require_each_once(halted)
    # If it and the harvester lock the tables in another order, the harvester is the one that notices.
    well.query("SET LOCAL deadlock_timeout = '1min'; DROP SCHEMA shop_late, shop_late_outbox_staging CASCADE")
    process.wait_for("gone", outbox='"shop_late"."outbox"')
    shops.stash(well)
    shops.require_each_once(well)
    wait_until(lambda: shops.member(well) is not None)
    os.kill(process.popen.pid, signal.SIGTERM)
    process.ends()
    assert process.popen.returncode == 0
    assert [shops.member(outbox) for outbox in (well, halted, poisoned, locked)] == [None] * 4


def test_commands_tell_of_all_outboxes_of_a_list(shops: Shops) -> None:
    well, halted = (shops.make(name) for name in ("well", "halted"))
    halted.query("UPDATE shop_halted.outbox_state SET halted = 'somebody has restored a backup'")
    halted.stash(3)
    process = shops.start(**CALM)
    wait_until(lambda: process.newest_progress.get("outboxes", {}).get("resting") == 1)
    file = str(shops.files[-1])

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-f", file], env={"COLUMNS": "200"})

    shown = run("status")
    assert shown.exit_code == 1, shown.output  # missing.outbox is on the list
    assert "3 outboxes: 1 HALTED, 1 HEALTHY, 1 UNKNOWN" in shown.output
    assert "missing.outbox does not exist" in shown.output
    told = {each["outbox"]: each for each in json.loads(run("status", "--output", "json").output)}
    assert {name: each["verdict"]["state"] for name, each in told.items()} == {
        '"shop_halted"."outbox"': "halted",
        '"shop_well"."outbox"': "healthy",
        "missing.outbox": "unknown",
    }
    assert told['"shop_halted"."outbox"']["backlog"] == 3
    checked = json.loads(run("check", "--output", "json").output)["findings"]
    missing = [finding["text"] for finding in checked if finding["severity"] == "missing"]
    assert missing == ["missing.outbox does not exist. Run `airflow-outbox init`"]
    config = HarvestConfig.from_yaml(shops.files[-1])
    election = names_of(config)
    acls = run("check", "--acls", "table")
    assert acls.exit_code == 0, acls.output
    lines = [line.split() for line in acls.output.splitlines()]
    for resource, name, operation in (
        ("group", election.group_of(ROLES), "READ"),
        ("topic", election.leader_topic, "READ"),
        ("topic", election.leader_topic, "WRITE"),
        ("topic", "airflow-outbox.*", "WRITE"),
    ):
        assert [resource, name, operation] in [line[1:4] for line in lines], acls.output
    one = run("status", "--outbox", well.name)
    assert one.exit_code == 0, one.output
    assert "HEALTHY" in one.output
    for arguments in (["pause"], ["status", "--watch"], ["debezium", "check"], ["clusters", "status"]):
        refused = run(*arguments)
        assert refused.exit_code != 0
        assert "--outbox" in refused.output, refused.output


def test_check_names_what_the_election_of_a_list_lacks(shops: Shops) -> None:
    shops.make("well")
    config = shops.config()
    findings = [finding.text for finding in examine_list(config) if finding.severity is Severity.MISSING]
    [election] = [text for text in findings if text.startswith("the list's election: ")]
    assert election.endswith("does not exist. Run `airflow-outbox init`")
    make_list_topics(config)
    assert not [finding for finding in examine_list(config) if "election" in finding.text]


def test_outboxes_take_turns_and_rest_without_a_connection(shops: Shops) -> None:
    outboxes = [shops.make(name) for name in ("a", "b", "c")]
    for outbox in outboxes:
        shops.stash(outbox)
    with shops.harvesting_role(outboxes) as data_source:
        process = shops.start(data_source=data_source, awake_outboxes=1, rest_after="1s", **CALM)
        require_turns(shops, process, outboxes)


def require_turns(shops: Shops, process: Process, outboxes: Sequence[Outbox]) -> None:
    for outbox in outboxes:
        shops.require_each_once(outbox)

    def resting() -> object:
        return process.newest_progress.get("outboxes", {}).get("resting")

    wait_until(lambda: resting() == 3, doing=lambda: str(process.events[-20:]))
    assert {each["outboxes"]["awake"] for each in process.events if each["event"] == "progress"} <= {0, 1}
    assert process.newest_progress["published"] == 3 * EACH
    connected = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'airflow-outbox harvest' AND datname = current_database()"
    )
    wait_until(lambda: outboxes[0].query(connected) == [(0,)])
    # A transaction without records is published, too: whoever rests says so.
    with psycopg.connect(shops.database) as connection:
        ticket = stash(connection, [], outbox=outboxes[0].name)
        connection.commit()
        wait_until(lambda: published(connection, ticket, outbox=outboxes[0].name))
    shops.stash(outboxes[1])
    shops.require_each_once(outboxes[1])


def test_another_process_takes_over_when_one_is_killed(shops: Shops) -> None:
    outboxes = [shops.make(name) for name in ("a", "b")]
    first = shops.start()
    wait_until(lambda: first.newest_progress.get("outboxes", {}).get("resting") == 2)
    second = shops.start()
    for outbox in outboxes:
        shops.stash(outbox)
        shops.require_each_once(outbox)
    second.wait_for("found", outbox='"shop_b"."outbox"')
    os.kill(first.popen.pid, signal.SIGKILL)
    for outbox in outboxes:
        shops.stash(outbox)
        shops.require_each_once(outbox)
    own = str(second.popen.pid)
    wait_until(lambda: all(str(shops.member(outbox)).endswith(f":{own}") for outbox in outboxes))


def test_an_outbox_that_somebody_else_harvests_is_left_alone(shops: Shops) -> None:
    outbox, other = shops.make("a"), shops.make("b")
    alone = shops.start(by_itself=outbox, **CALM)
    alone.wait_for("took_over")
    many = shops.start(**CALM)
    shops.stash(other)
    shops.require_each_once(other)
    shops.stash(outbox)
    shops.require_each_once(outbox)
    assert not about(many, outbox)("woken")
    assert [each for each in alone.events if each["event"] == "fenced"] == []
    assert str(shops.member(outbox)).endswith(f":{alone.popen.pid}")
    os.kill(alone.popen.pid, signal.SIGTERM)
    alone.ends()
    shops.stash(outbox)
    shops.require_each_once(outbox)
    wait_until(lambda: about(many, outbox)("woken"))


def test_a_look_at_several_names_the_one_that_fails(database: str) -> None:
    names = [OutboxName.parse(f"shop_{shop}.outbox") for shop in ("a", "b", "c")]
    with closing(watch.opened(database)) as connection:
        connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        for name in names:
            init_outbox(connection, name)
        tables = [RestingTable(name, uuid4(), member="m", thresholds=Thresholds()) for name in names]
        looks = Looks()
        assert watch.waiting(connection, looks, tables) == (set(), {})
        stash(connection, OutboxRecord("t", "k", "v"), outbox="shop_c.outbox")
        assert watch.waiting(connection, looks, tables) == ({names[2]}, {})
        connection.execute("DROP TABLE shop_b.outbox CASCADE")
        found, failures = watch.waiting(connection, looks, tables)
        assert (found, failures.keys()) == ({names[2]}, {names[1]})
        with pytest.raises(OutboxMissingError, match="is no longer outbox"):
            tables[0].take_up(connection, uuid4())
