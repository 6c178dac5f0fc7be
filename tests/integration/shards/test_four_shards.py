"""One outbox with four shards on real servers, led by one member: all that is outbox-wide says whose it is.

The tests share the outbox and its member; each has keys or topics of its own.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from support.harvesting import CALM, CHILD, PARTITIONS, PATIENCE, Outbox, Process, make_outbox, make_topic, wait_until
from support.slots import key_of, slot_of

from airflow_outbox import OutboxRecord, Ticket, published, stash
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.acls import Acl, needed_acls
from airflow_outbox.operate.check import acls, examine
from airflow_outbox.operate.finding import Severity
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.values.layout import Layout

NAME = OutboxName.parse("outbox")
SHARDS = (0, 1, 2, 3)
OLD_DAY = (
    "CREATE TABLE outbox_archive_20200101 PARTITION OF outbox_archive FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
)


@dataclass(frozen=True, slots=True)
class Four:
    """The outbox, its configuration, also in a file, and the member that leads its shards."""

    outbox: Outbox
    file: Path
    member: Process

    @property
    def config(self) -> HarvestConfig:
        return HarvestConfig.validated(self.outbox.settings, source="test")

    def run(self, *command: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, [*command, "-f", str(self.file)])
        may_end_with = (0, 3) if command[0] == "status" else (status,)  # 3: nobody leads for a moment
        assert result.exit_code in may_end_with, result.output
        return result.stdout if "json" in command else result.output  # notes go beside it

    def stash(self, *records: OutboxRecord) -> Ticket:
        """In one transaction."""
        with psycopg.connect(self.outbox.database) as connection:
            return stash(connection, records)

    def make(self, topic: str, partitions: int) -> None:
        make_topic({"bootstrap.servers": self.outbox.bootstrap}, topic, partitions=partitions)

    def of_each_shard(self, topic: str, *, number: int, records: int = 1) -> list[OutboxRecord]:
        """Records of a key in each shard."""
        keys = [key_of(shard, topic, number=number) for shard in SHARDS]
        return [OutboxRecord(topic, key, str(each)) for each in range(records) for key in keys]

    def told(self, event: str) -> set[Any]:
        """The shards of which the member has told such an event."""
        return {each.get("shard") for each in self.member.events if each["event"] == event}


@pytest.fixture(scope="module")
def four(postgres: EmbeddedPostgres, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    database = postgres.create_database(name)
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=f"{name}.data", purge="archive", shards=4, limits=CALM
    )
    file = tmp_path_factory.mktemp("four") / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    made = CliRunner().invoke(main, ["init", "-f", str(file)])
    assert "has 4 shards" in made.output, made.output
    outbox.query(OLD_DAY)
    member = Process(CHILD, first_line={"config": outbox.settings, "until": "forever"})
    four = Four(outbox, file, member)
    wait_until(lambda: four.told("took_over") == set(SHARDS), doing=lambda: str(member.events))
    yield four
    member.end()
    postgres.drop_database(name)


def test_each_shard_publishes_its_keys_in_order_and_announces_that(four: Four) -> None:
    outbox = four.outbox
    with psycopg.connect(outbox.database, autocommit=True) as listening:
        [(outbox_id,)] = outbox.query("SELECT outbox_id FROM outbox_state")
        listening.execute(f'LISTEN "outbox shards {outbox_id}"'.encode())
        outbox.stash(400, keys=40)
        heard: set[tuple[str, ...]] = set()
        for notice in listening.notifies(timeout=PATIENCE):
            heard.add(tuple(notice.payload.split()[:3]))
            if len(heard) == len(SHARDS):
                break
    assert heard == {(str(shard), "2", "1") for shard in SHARDS}  # of this layout and incarnation
    wait_until(lambda: outbox.left() == 0)
    assert outbox.by_key() == {f"k{key}": list(range(key, 400, 40)) for key in range(40)}
    expected = Counter(slot_of(outbox.topic, f"k{number % 40}") % 4 for number in range(400))
    counted = "SELECT shard, (topics ->> '{}')::integer FROM outbox_published"
    wait_until(lambda: dict(outbox.query(counted.format(outbox.topic))) == expected)


async def test_a_ticket_is_published_when_all_shards_are(four: Four) -> None:
    records = four.of_each_shard(four.outbox.topic, number=0)
    with psycopg.connect(four.outbox.database) as stopping:
        stopping.execute("SELECT FROM outbox_shard WHERE shard = 2 FOR UPDATE")  # its leader can purge nothing
        ticket = four.stash(*records)
        waiting = asyncio.create_task(answered(four, ticket))
        seen = f"shard FROM outbox_published WHERE pg_visible_in_snapshot('{ticket.transaction_id}', watermark)"
        async with asyncio.timeout(PATIENCE):
            while {shard for (shard,) in four.outbox.query(f"SELECT {seen}")} != {0, 1, 3}:
                await asyncio.sleep(0.02)
        assert four.outbox.query("SELECT kafka_key FROM outbox") == [(records[2].key,)]
        with psycopg.connect(four.outbox.database) as connection:
            assert not published(connection, ticket)
        assert not waiting.done()
        stopping.rollback()
    async with asyncio.timeout(PATIENCE):
        await waiting
    with psycopg.connect(four.outbox.database, autocommit=True) as connection:
        wait_until(lambda: published(connection, ticket))  # the row is written up to a second later


async def answered(four: Four, ticket: Ticket) -> None:
    """Wait as the sensor does."""
    async with aclosing(Listener(four.outbox.database).statuses(NAME, ticket)) as statuses:
        async for _ in statuses:
            pass


def test_each_shard_parks_retries_and_discards_its_own(four: Four, topic_prefix: str) -> None:
    topic, outbox = f"{topic_prefix}later", four.outbox
    four.stash(*four.of_each_shard(topic, number=0, records=2), *four.of_each_shard(topic, number=1, records=2))
    four.stash(*four.of_each_shard(outbox.topic, number=1))  # which nothing holds up
    wait_until(lambda: outbox.left() == 0)
    representatives = "SELECT kafka_key FROM outbox_parked WHERE cause = 'unknown_topic'"
    assert sorted(slot_of(topic, key) % 4 for (key,) in outbox.query(representatives)) == list(SHARDS)
    wait_until(lambda: four.told("parked") >= set(SHARDS))
    status: dict[str, Any] = {}

    def lags() -> bool:
        status.update(json.loads(four.run("status", "--output", "json")))
        return bool(status["verdict"]["state"] == "lagging")

    wait_until(lags, doing=lambda: str(status))
    assert [shard["refused"] for shard in status["shards"]] == [1, 1, 1, 1]
    assert status["verdict"]["cause"].startswith("shards 0, 1, 2 and 3: records are parked (1 unknown_topic)")

    with psycopg.connect(outbox.database, autocommit=True) as connection:
        requests = ParkedRequests(connection, NAME)
        for number in (0, 1):
            assert requests.ask("discard", Choice(topic=topic, key=key_of(1, topic, number=number)), reason="x") == 2
        discarded = "SELECT DISTINCT kafka_key FROM outbox_parked WHERE discarded_at IS NOT NULL"
        wait_until(lambda: len(outbox.query(discarded)) == 2)
        assert requests.ask("retry", Choice(topic=topic)) == 12  # before they are published by themselves
        four.make(topic, PARTITIONS)
        requests.ask("retry", Choice(topic=topic))
    wait_until(lambda: outbox.query("SELECT count(*) FROM outbox_parked WHERE discarded_at IS NULL") == [(0,)])
    lanes = Outbox(outbox.database, outbox.bootstrap, topic).by_key()
    assert lanes == {key_of(shard, topic, number=number): [0, 1] for shard in (0, 2, 3) for number in (0, 1)}
    wait_until(lambda: four.told("retried") >= {0, 2, 3})
    assert four.told("discarded") == {1}


def test_the_archive_is_the_whole_outboxs_and_an_audit_names_the_shard(four: Four) -> None:
    outbox = four.outbox
    wait_until(lambda: outbox.query("SELECT to_regclass('outbox_archive_20200101') IS NULL") == [(True,)])
    outbox.query(
        "INSERT INTO outbox_archive (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        " transaction_id, archived_at, view)"
        f" SELECT 1000000, now(), '{outbox.topic}', '{key_of(2, outbox.topic)}', '{{}}', '{{}}',"
        " pg_current_xact_id(), now(), gen_random_uuid()"
    )
    audit = ("audit", "--table", "outbox_archive", "--topic", outbox.topic, "--output", "json")
    found = json.loads(four.run(*audit, status=1))
    outbox.query("DELETE FROM outbox_archive WHERE id = 1000000")
    assert (found["missing"], found["doubled"], found["reordered"]) == (1, 0, 0)
    assert [(each["id"], each["shard"]) for each in found["examples"]["missing"]] == [(1_000_000, 2)]
    assert found["stashed"] == found["arrived"] + 1 >= 400


def test_check_and_acls_know_all_shards(four: Four) -> None:
    def missing(**settings: Any) -> list[str]:
        config = HarvestConfig.validated({**four.outbox.settings, **settings}, source="test")
        return [finding.text for finding in examine(config) if finding.severity is Severity.MISSING]

    assert missing() == []
    assert any("it is atomic" in text for text in missing(atomic=True, shards=1))
    narrow = f"{four.outbox.topic}.narrow"
    four.make(narrow, 2)
    assert any("has 2 partitions, but the outbox has 4 shards" in text for text in missing(ledger_topic=narrow))
    valid = "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'outbox_slot_id'::regclass"
    four.outbox.query(valid.format("false"))
    try:
        assert any("no index by slot and id" in text for text in missing())
    finally:
        four.outbox.query(valid.format("true"))

    def named(found: list[Acl]) -> tuple[list[str], list[str]]:
        return tuple([acl.name for acl in found if acl.resource == of] for of in ("group", "transactional-id"))  # type: ignore[return-value]

    own = f"airflow-outbox.{four.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}"
    assert named(acls(four.config)["primary"]) == ([f"{own}.shards"], [f"{own}.{shard}.0" for shard in SHARDS])
    names = KafkaNames.of(four.config, uuid.UUID(int=1))
    groups, ids = named(needed_acls(four.config, names, [], layouts=[Layout(), Layout(2, 2)]))
    assert groups == [names.leader_group_id, f"{names.leader_group_id}.shards"]
    assert {f"{names.transactional_id}.0.0", f"{names.transactional_id}.1.0"} <= {*ids}


def test_status_metrics_and_history_show_each_shard(four: Four) -> None:
    metrics: dict[str, Any] = {}

    def is_heard() -> bool:
        measured = next((each for each in reversed(four.member.events) if each["event"] == "measured"), {"metrics": {}})
        metrics.update(measured["metrics"])
        return bool(metrics.get("leader_silence", 9) < 6)

    wait_until(is_heard)
    for metric in ("shard_backlog", "shard_oldest_age", "shard_leader_silence", "shard_rate", "shard_verdict"):
        assert set(metrics[metric]) == {str(shard) for shard in SHARDS}
    four.stash(*four.of_each_shard(four.outbox.topic, number=2))
    noted = "SELECT DISTINCT shard FROM outbox_history ORDER BY 1"
    wait_until(lambda: four.outbox.query(noted) == [(shard,) for shard in SHARDS])
    text = ""

    def is_healthy() -> bool:
        nonlocal text
        text = four.run("status")
        return text.count("HEALTHY") == 1 + len(SHARDS)

    wait_until(is_healthy, doing=lambda: text)  # not lagging any more, nor since a moment ago
    assert "shards: 4, layout 2" in text
    lines = [line for line in text.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in lines] == [str(shard) for shard in SHARDS]
    assert all("HEALTHY" in line for line in lines)
    assert json.loads(four.run("status", "--history", "1h", "--shard", "3", "--output", "json"))
    assert "HEALTHY: " in text
    assert "leads 4 shards, and" in text
