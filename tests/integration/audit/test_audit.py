"""`airflow-outbox audit` on real servers: what it says when all is well, and of each way in which it may not be."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from support.archiving import Archived, counts
from support.harvesting import COMMAND, PARTITIONS, PATIENCE, Process, partitions_of, wait_until

from airflow_outbox import OutboxRecord
from airflow_outbox.audit import run, topics
from airflow_outbox.cli import main


def test_all_is_well_after_a_harvest_and_while_one_goes_on(archived: Archived) -> None:
    harvester = Process([*COMMAND, "harvest", "-f", str(archived.file)])
    try:
        stop = threading.Event()
        stashed = 0

        def go_on() -> None:
            nonlocal stashed
            while not stop.is_set():
                archived.outbox.stash(50, start=stashed)
                stashed += 50
                stop.wait(0.02)

        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            harvester.wait_for("progress", standing="leading")
            wait_until(lambda: stashed)
            for _ in range(5):
                report = archived.audit()
                assert set(counts(report)) <= {"waiting", "later"}
                assert report["stashed"] > 0
        finally:
            stop.set()
            writer.join()
    finally:
        harvester.popen.terminate()
        harvester.ends()
        harvester.end()
    subprocess.run(
        [*COMMAND, "harvest", "-f", str(archived.file), "--until", "drained"], check=True, timeout=3 * PATIENCE
    )
    report = archived.audit()
    assert counts(report) == {}
    assert (report["well"], report["stashed"], report["arrived"]) == (True, stashed, stashed)


def test_every_kind_is_found_with_its_example(archived: Archived) -> None:
    one, two, three, four, five = (archived.record(number) for number in range(1, 6))
    archived.stash(one, two)
    archived.stash(three)
    archived.stash(four)
    archived.stash(five)
    archived.purge()
    stranger = OutboxRecord(archived.topic, "other", "x")
    archived.publish([one, four, three, four, stranger])
    report = archived.audit("--exclusive", status=1)
    assert counts(report) == {"missing": 2, "doubled": 1, "reordered": 1, "torn": 1, "foreign": 1}
    assert report["faults"] == ["missing", "doubled", "reordered", "torn", "foreign"]
    first = {kind: examples[0] for kind, examples in report["examples"].items()}
    transaction = first["torn"].pop("transaction_id")
    assert str(transaction) in first["torn"]["what"]
    place = {"topic": archived.topic, "partition": 0}
    assert first == {
        "missing": {"what": "record 2 is not in Kafka", "id": 2, "topic": archived.topic, "key": "k"},
        "doubled": {"what": "record 4 is in Kafka once more", "id": 4, "key": "k", "offset": 3, **place},
        "reordered": {
            "what": "record 3 came after record 4, which was stashed later",
            "id": 3,
            "key": "k",
            "offset": 2,
            **place,
        },
        "torn": {
            "what": f"transaction {transaction} lacks 1 of its records, first record 2",
            "id": 2,
            "topic": archived.topic,
            "key": "k",
        },
        "foreign": {"what": "no such record was stashed", "offset": 4, **place},
    }
    allowed = ["--allow=missing", "--allow=doubled", "--allow=reordered"]
    assert archived.audit(*allowed, status=1)["faults"] == ["torn"]
    assert archived.audit(*allowed, "--allow=torn")["well"]


def test_the_same_as_a_table_and_as_yaml(archived: Archived) -> None:
    archived.stash(archived.record(1), archived.record(2, key="[red]k"))
    archived.purge()
    archived.publish([archived.record(1)])
    command = ["audit", "-f", str(archived.file), "--table", "archive"]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 1
    assert "missing   │ 1       │ a fault" in shown.output
    assert f"missing: record 2 is not in Kafka (topic {archived.topic}, key [red]k)\n" in shown.output
    assert shown.output.endswith("found: missing, torn\n")
    as_yaml = CliRunner().invoke(main, [*command, "--output", "yaml"])
    assert yaml.safe_load(as_yaml.output) == archived.audit(status=1)


def test_tombstones_bytes_headers_and_partitions(archived: Archived) -> None:
    plain = [
        OutboxRecord(archived.topic, "k", None),
        OutboxRecord(archived.topic, "k", ""),
        OutboxRecord(archived.topic, "é", "ü", [("a", "1"), ("a", "2")]),
    ]
    pinned = [OutboxRecord(archived.topic, "k", "same", partition=number % 3) for number in range(6)]
    archived.stash(*plain, *pinned)
    archived.purge()
    archived.publish(plain)
    for partition in range(3):
        archived.publish(pinned[:2], partition=partition)
    assert counts(archived.audit()) == {}

    archived.stash(*plain)
    archived.purge()
    archived.publish([plain[1], plain[0], OutboxRecord(archived.topic, "é", "ü", [("a", "2"), ("a", "1")])])
    assert counts(archived.audit(status=1)) == {"missing": 1, "torn": 1, "foreign": 1, "reordered": 1}


def test_headers_that_others_add_can_be_left_out(archived: Archived) -> None:
    archived.stash(archived.record(1))
    archived.purge()
    archived.publish([OutboxRecord(archived.topic, "k", "1", {"n": "1", "traceparent": "00-1"})])
    assert counts(archived.audit(status=1)) == {"missing": 1, "foreign": 1}
    assert counts(archived.audit("--ignore-header", "traceparent")) == {}


def test_records_that_wait_are_not_missing(archived: Archived) -> None:
    archived.stash(archived.record(1), archived.record(2))
    assert counts(archived.audit()) == {"waiting": 2}
    archived.publish([archived.record(1)])
    assert counts(archived.audit()) == {"waiting": 1}
    archived.execute("DELETE FROM outbox WHERE id = 2")
    assert counts(archived.audit(status=1)) == {"missing": 1, "torn": 1}


@pytest.mark.parametrize("filled", ["by stashing", "by purging"])
def test_records_that_are_parked_are_not_missing(archived: Archived, filled: str) -> None:
    archived.execute("DROP TABLE IF EXISTS outbox_parked CASCADE; CREATE TABLE outbox_parked (LIKE outbox)")
    if filled == "by purging":
        archived.execute("DROP TRIGGER keep_stashed ON outbox")
    archived.stash(archived.record(1), archived.record(2))
    archived.execute("WITH gone AS (DELETE FROM outbox RETURNING *) INSERT INTO outbox_parked SELECT * FROM gone")
    assert counts(archived.audit()) == {"waiting": 2}
    archived.publish([archived.record(1)])
    assert counts(archived.audit("--exclusive")) == {"waiting": 1}


def test_what_happens_between_the_steps_of_an_audit_is_no_fault(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on(number: int) -> None:
        archived.stash(archived.record(number))
        archived.publish([archived.record(number)])
        archived.purge()

    archived.stash(archived.record(0))  # which is published and purged only behind the snapshot
    calls = iter(range(2))

    def ends(*arguments: Any) -> Any:
        if next(calls) == 0:
            found = topics.ends(*arguments)
            go_on(1)  # behind the first ends, and before the snapshot
            archived.stash(archived.record(2))
            return found
        archived.publish([archived.record(2)])
        archived.purge()
        go_on(3)  # behind the snapshot, and before the second ends
        found = topics.ends(*arguments)
        go_on(4)
        return found

    monkeypatch.setattr(run, "ends", ends)
    archived.publish([archived.record(0)])
    report = archived.audit("--exclusive")
    assert counts(report) == {"later": 1}
    assert report["stashed"] == 3


def test_an_archive_that_is_filled_by_purging(archived: Archived) -> None:
    archived.execute("DROP TRIGGER keep_stashed ON outbox")
    archived.stash(archived.record(1), archived.record(2))
    archived.publish([archived.record(1)])
    assert counts(archived.audit()) == {"waiting": 1}
    archived.publish([archived.record(2)])
    archived.execute("WITH purged AS (DELETE FROM outbox RETURNING *) INSERT INTO archive SELECT * FROM purged")
    assert counts(archived.audit()) == {}


def test_what_consumers_of_committed_records_do_not_see_does_not_count(archived: Archived) -> None:
    archived.stash(archived.record(1), archived.record(2))
    archived.purge()
    producer = Producer({"bootstrap.servers": archived.outbox.bootstrap, "transactional.id": archived.topic})
    producer.init_transactions(PATIENCE)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(archived.topic, key="k", value="1", headers={"n": "1"}, partition=0)
        producer.flush()
        end()
    producer.begin_transaction()
    producer.produce(archived.topic, key="k", value="2", headers={"n": "2"}, partition=0)
    producer.flush()
    open_still = archived.audit(status=1)
    assert counts(open_still) == {"missing": 1, "torn": 1}
    producer.commit_transaction()
    # The broker writes the end of a transaction after its answer.
    wait_until(lambda: counts(archived.audit("--allow", "missing", "--allow", "torn")) == {})


def test_what_retention_has_removed_is_not_missing_and_what_came_later_is(archived: Archived) -> None:
    old, new = [archived.record(number) for number in range(10)], archived.record(10)
    archived.stash(*old)
    archived.purge()
    archived.publish(old)
    admin = AdminClient({"bootstrap.servers": archived.outbox.bootstrap})
    [removed] = admin.delete_records([TopicPartition(archived.topic, 0, 7)]).values()
    removed.result()
    assert counts(archived.audit()) == {"expired": 7}
    archived.stash(new)
    archived.purge()
    assert counts(archived.audit()) == {"expired": 8}  # as far as clocks of two machines tell
    archived.execute("UPDATE archive SET create_time = now() + '10 minutes' WHERE kafka_value = '10'")
    assert counts(archived.audit(status=1)) == {"expired": 7, "missing": 1}
    [removed] = admin.delete_records([TopicPartition(archived.topic, 0, 10)]).values()
    removed.result()
    assert counts(archived.audit()) == {"expired": 11}  # nothing is left that could tell


def test_of_a_compacted_topic_nothing_is_missing(archived: Archived) -> None:
    archived.stash(archived.record(1), archived.record(2))
    archived.purge()
    archived.publish([archived.record(2)])
    assert counts(archived.audit(status=1)) == {"missing": 1, "torn": 1}
    admin = AdminClient({"bootstrap.servers": archived.outbox.bootstrap})
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, archived.topic, incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result()
    # The broker tells the new setting some time after its answer.
    wait_until(lambda: counts(archived.audit("--allow", "missing", "--allow", "torn")) == {"expired": 1})


def test_a_key_that_has_moved_with_the_partitions(archived: Archived) -> None:
    records = [archived.record(number) for number in range(3)]
    archived.stash(*records)
    archived.purge()
    admin = AdminClient({"bootstrap.servers": archived.outbox.bootstrap})
    admin.create_partitions([NewPartitions(archived.topic, PARTITIONS + 2)])[archived.topic].result()
    wait_until(lambda: partitions_of(admin, archived.topic) == PARTITIONS + 2)
    archived.publish(records[:1])
    archived.publish(records[1:], partition=5)
    report = archived.audit(status=1)
    assert counts(report) == {"reordered": 1}
    assert "partition 0, offset 0" in report["examples"]["reordered"][0]["what"]
    assert report["examples"]["reordered"][0]["partition"] == 5


def test_a_topic_that_is_not_there_lacks_all(archived: Archived) -> None:
    gone = f"{archived.topic}-gone"
    archived.stash(OutboxRecord(gone, "k", "v"), archived.record(1))
    archived.purge()
    archived.publish([archived.record(1)])
    assert counts(archived.audit("--topic", archived.topic)) == {}
    report = archived.audit(status=1)
    assert counts(report) == {"missing": 1, "torn": 1}
    assert report["topics"] == sorted([archived.topic, gone])


@pytest.mark.parametrize(
    ("statement", "table", "says"),
    [
        ("SELECT", "nowhere", 'there is no table "nowhere". Name a table of what was stashed'),
        ("SELECT", "outbox", "is the outbox itself"),
        ("SELECT", "archive", "is empty: there is nothing to audit"),
        ("ALTER TABLE archive DROP COLUMN kafka_key", "archive", "has no column kafka_key"),
        ("DROP TABLE outbox", "archive", "Run `airflow-outbox init`"),
    ],
)
def test_what_can_not_be_audited(archived: Archived, statement: str, table: str, says: str) -> None:
    archived.execute(statement)
    result = CliRunner().invoke(main, ["audit", "-f", str(archived.file), "--table", table])
    assert result.exit_code == 1
    assert says in result.output


def test_a_table_with_fewer_columns_is_enough(archived: Archived) -> None:
    archived.stash(archived.record(1), archived.record(2))
    archived.purge()
    for column in ("transaction_id", "create_time", "kafka_partition", "leader_id"):
        archived.execute(f"ALTER TABLE archive DROP COLUMN {column}")
    archived.publish([archived.record(2)])
    assert counts(archived.audit(status=1)) == {"missing": 1}


def test_kafka_that_is_not_there(archived: Archived) -> None:
    archived.stash(archived.record(1))
    archived.file.write_text(
        yaml.safe_dump({**archived.outbox.settings, "kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    )
    result = CliRunner().invoke(main, ["audit", "-f", str(archived.file), "--table", "archive"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output
