"""`airflow-outbox parked` as typed: operators ask, and a real harvester does it."""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.harvesting import (
    CALM,
    GOHARVEST_TABLE,
    PATIENCE,
    Outbox,
    Process,
    make_outbox,
    make_topic,
    wait_until,
)
from support.parking import park_by_hand

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests, shown
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox

Run = Callable[..., Result]
PATIENT_CHILD = """
from airflow_outbox.harvest.__main__ import main
from airflow_outbox.postgres import parked

parked._FIRST_DELAY = 500.0
main()
"""
"""The harvesting child, which does not try parked records again before somebody asks."""
TOO_LARGE = "".join(random.Random(0).choices(string.ascii_letters, k=4000))  # which no compression makes small


@pytest.fixture(params=["exactly_once", "at_least_once"])
def outbox(request: pytest.FixtureRequest, database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    """Ours, or goharvest's table, which knows no transactions."""
    if request.param == "at_least_once":
        with psycopg.connect(database) as connection:
            connection.execute(GOHARVEST_TABLE.format("outbox"))
    made = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", delivery=request.param, limits=CALM
    )
    small = topic_prefix + "small"
    make_topic({"bootstrap.servers": kafka.bootstrap}, small, config={"max.message.bytes": "1000"})
    return made


@pytest.fixture
def harvester(outbox: Outbox) -> Iterator[Process]:
    process = Process([sys.executable, "-c", PATIENT_CHILD], first_line={"config": outbox.settings})
    yield process
    process.end()


@pytest.fixture
def run(outbox: Outbox, tmp_path: Path) -> Run:
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))

    def run(*command: str, status: int = 0) -> Result:
        result = CliRunner().invoke(main, [*command, "-f", str(file)])
        assert result.exit_code == status, result.output
        return result

    return run


def write(outbox: Outbox, *records: OutboxRecord) -> None:
    with psycopg.connect(outbox.database) as connection:
        stash(connection, records)


def listed(run: Run, *options: str) -> list[dict[str, Any]]:
    return list(json.loads(run("parked", "list", "--output", "json", *options).stdout))


def small(outbox: Outbox) -> str:
    return outbox.topic.removesuffix("data") + "small"


def missing(outbox: Outbox) -> str:
    return outbox.topic.removesuffix("data") + "missing"


def poison(outbox: Outbox) -> None:
    """A record that is too large for its topic, with two behind it, and three of a topic that is not there."""
    write(
        outbox,
        OutboxRecord(small(outbox), "a", TOO_LARGE, {"h": "1"}),
        *(OutboxRecord(small(outbox), "a", str(n)) for n in (1, 2)),
        OutboxRecord(small(outbox), "b", "free"),
        *(OutboxRecord(missing(outbox), "k", str(n)) for n in range(3)),
    )


@pytest.fixture
def poisoned(outbox: Outbox, harvester: Process) -> Outbox:
    poison(outbox)
    wait_until(
        lambda: outbox.query("SELECT count(*) FROM outbox_parked")[0][0] == 6,
        doing=f"parking: {harvester.events}",
    )
    wait_until(lambda: outbox.left() == 0, doing="publishing the others")
    return outbox


def values(outbox: Outbox, topic: str) -> list[str]:
    there = Outbox(outbox.database, outbox.bootstrap, topic)
    return [message.value().decode() for message in there.committed()]


def test_what_is_parked_is_listed_and_shown(poisoned: Outbox, run: Run) -> None:
    rows = sorted(listed(run), key=lambda row: int(row["id"]))
    assert [(row["topic"], row["key"], row["cause"]) for row in rows] == [
        (small(poisoned), "a", "too_large"),
        (small(poisoned), "a", None),
        (small(poisoned), "a", None),
        (missing(poisoned), "k", "unknown_topic"),
        (missing(poisoned), "k", None),
        (missing(poisoned), "k", None),
    ]
    assert {row["shard"] for row in rows} == {None}
    assert "shard" not in run("parked", "list").output
    transactions = {row["transaction_id"] for row in rows}
    assert len(transactions) == 1
    assert (transactions == {None}) == (poisoned.settings["delivery"] == "at_least_once")
    assert "Create it" in rows[3]["reason"]
    assert len(listed(run, "--topic", small(poisoned))) == 3
    assert [row["key"] for row in listed(run, "--key", "k")] == ["k"] * 3
    assert [row["id"] for row in listed(run, "--id", str(rows[2]["id"]), "--id", str(rows[1]["id"]))] == [
        rows[1]["id"],
        rows[2]["id"],
    ]
    assert listed(run, "--topic", small(poisoned), "--key", "k") == []
    assert len(listed(run, "--limit", "2")) == 2
    assert "only the first 2" in run("parked", "list", "--limit", "2").stderr
    assert run("parked", "list", "--limit", "6").stderr == ""
    for command in (["retry"], ["discard", "--reason", "why"]):
        assert "no waiting parked record" in run("parked", *command, "--id", "999999", status=1).output
    (whole,) = yaml.safe_load(run("parked", "show", "--id", str(rows[0]["id"]), "--output", "yaml").stdout)
    assert (whole["value"], whole["header_names"], whole["header_values"]) == (TOO_LARGE, ["h"], ["1"])
    assert "too_large" in run("parked", "list").stdout
    assert TOO_LARGE[:50] in run("parked", "show", "--topic", small(poisoned)).stdout


def test_status_counts_what_is_parked_by_cause(poisoned: Outbox, run: Run) -> None:
    parked = json.loads(run("status", "--output", "json").stdout)["parked"]
    knows_transactions = poisoned.settings["delivery"] == "exactly_once"
    assert parked == {
        "refused": {"too_large": 1, "unknown_topic": 1},
        "waiting": 4,
        "transactions_refused": 1 if knows_transactions else None,
        "transactions_held": 0 if knows_transactions else None,
    }
    assert "1 too_large, 1 unknown_topic; 4 wait behind them" in run("status").stdout
    write(poisoned, OutboxRecord(small(poisoned), "a", "3"))
    wait_until(lambda: len(listed(run)) == 7)
    assert json.loads(run("status", "--output", "json").stdout)["parked"]["transactions_held"] == (
        1 if knows_transactions else None
    )


def test_a_retry_is_carried_out_in_order_when_the_cause_is_gone(poisoned: Outbox, harvester: Process, run: Run) -> None:
    make_topic({"bootstrap.servers": poisoned.bootstrap}, missing(poisoned))
    assert "asked the leader to retry 3 records" in run("parked", "retry", "--topic", missing(poisoned)).stdout
    wait_until(lambda: len(listed(run)) == 3, doing="the retry")
    assert values(poisoned, missing(poisoned)) == ["0", "1", "2"]

    def told() -> int:
        retried = [event["topics"] for event in harvester.events if event["event"] == "retried"]
        return sum(topics.get(missing(poisoned), 0) for topics in retried)

    wait_until(lambda: told() == 3, doing="the event")
    enlarge({"bootstrap.servers": poisoned.bootstrap}, small(poisoned))
    run("parked", "retry", "--all")
    wait_until(lambda: listed(run) == [], doing="the other retry")
    found = [value for value in values(poisoned, small(poisoned)) if not value.startswith("free")]
    assert found == [TOO_LARGE, "1", "2"]
    assert json.loads(run("status", "--output", "json").stdout)["parked"]["refused"] == {}


def enlarge(kafka: dict[str, Any], topic: str) -> None:
    """Let the topic take large records, and wait until the broker does."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin, producer = AdminClient(kafka), Producer(kafka)
    admin.incremental_alter_configs([resource])[resource].result()

    def takes_it() -> bool:
        errors: list[object] = []
        producer.produce(topic, f"free {TOO_LARGE}", "b", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE) == 0
        return errors == [None]

    wait_until(takes_it)


def test_a_retry_that_fails_is_answered_with_why(poisoned: Outbox, harvester: Process, run: Run) -> None:
    before = listed(run, "--topic", small(poisoned))
    run("parked", "retry", "--id", str(before[2]["id"]))
    wait_until(lambda: listed(run, "--id", str(before[0]["id"]))[0]["attempts"] == 1, doing="the retry")
    after = listed(run, "--topic", small(poisoned))
    assert [row["id"] for row in after] == [row["id"] for row in before]
    assert {row["requested"] for row in after} == {None}
    assert after[0]["cause"] == "too_large"
    wait_until(lambda: "too_large" in refused_again(harvester), doing="the event")


def refused_again(harvester: Process) -> set[str]:
    retried = [event for event in harvester.events if event["event"] == "retried" and event["refused"]]
    return {why["cause"] for event in retried for why in event["reasons"]}


def test_a_discarded_record_lets_the_next_ones_go_and_is_kept_until_it_is_purged(
    poisoned: Outbox, harvester: Process, run: Run
) -> None:
    bad = listed(run, "--topic", small(poisoned))[0]["id"]
    assert (
        "asked the leader to discard 1" in run("parked", "discard", "--id", str(bad), "--reason", "a test's own").stdout
    )
    wait_until(lambda: listed(run, "--topic", small(poisoned)) == [], doing="the discard")
    assert [value for value in values(poisoned, small(poisoned)) if value != "free"] == ["1", "2"]
    harvester.wait_for("discarded", topics={small(poisoned): 1})
    (note,) = listed(run, "--discarded")
    assert (note["id"], note["request_reason"], note["requested_by"], note["cause"]) == (
        bad,
        "a test's own",
        poisoned.query("SELECT session_user")[0][0],
        "too_large",
    )
    assert note["discarded_at"] >= note["requested_at"]
    show = ["parked", "show", "--id", str(bad), "--output", "json"]
    assert json.loads(run(*show).stdout)[0]["value"] == TOO_LARGE
    assert "emptied 1" in run("parked", "discard", "--purge", "--all").stdout
    assert "emptied 0" in run("parked", "discard", "--purge", "--all").stdout
    (emptied,) = json.loads(run(*show).stdout)
    assert (emptied["value"], emptied["header_names"], emptied["header_values"]) == (None, [], [])
    assert (emptied["request_reason"], emptied["discarded_at"] is None) == ("a test's own", False)
    waits = json.loads(run("parked", "show", "--topic", missing(poisoned), "--output", "json").stdout)
    assert [row["value"] for row in waits] == ["0", "1", "2"]  # what waits is not touched


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["retry"], "select the records"),
        (["retry", "--all", "--topic", "t"], "select the records"),
        (["show"], "select the records"),
        (["discard", "--reason", "why"], "select the records"),
        (["discard", "--purge"], "select the records"),
        (["discard", "--all"], "--reason"),
        (["discard", "--all", "--purge", "--reason", "why"], "--reason"),
    ],
)
def test_nothing_is_done_without_a_word_about_which_and_why(run: Run, command: list[str], says: str) -> None:
    result = run("parked", *command, status=2 if says == "--reason" else 1)
    assert says in result.output


def test_keys_of_bytes_are_typed_and_shown_as_text_or_in_hexadecimal(database: str) -> None:
    keys = [b"plain", b"\xff\x00", b"\\x41", "ü".encode()]
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), key_type="bytea")
        park_by_hand(connection, *keys)
        requests = ParkedRequests(connection, OutboxName.parse("outbox"))
        texts = [shown(row["key"]) for row in requests.listed(Choice(everything=True))]
        assert texts == ["plain", "\\xff00", "\\x5c783431", "ü"]
        for number, text in enumerate(texts):
            assert [row["id"] for row in requests.listed(Choice(key=text))] == [number]
        assert requests.ask("retry", Choice(key="\\xff00")) == 1
        with pytest.raises(ConfigurationError, match="hexadecimal"):
            requests.listed(Choice(key="\\xf"))


def test_it_works_with_goharvests_table_too(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(GOHARVEST_TABLE.format("outbox"))
        init_outbox(connection, OutboxName.parse("outbox"))
        park_by_hand(connection, "a", "b")
        requests = ParkedRequests(connection, OutboxName.parse("outbox"))
        assert [row["transaction_id"] for row in requests.listed(Choice(everything=True))] == [None, None]
        assert requests.whole(Choice(key="a"))[0]["partition"] is None
        assert requests.ask("discard", Choice(ids=(1,)), reason="why") == 1
        counts = requests.counts()
        assert (counts.refused, counts.waiting, counts.transactions_refused) == ({"refused": 2}, 0, None)


def test_who_operates_may_ask_and_do_nothing_by_hand(database: str) -> None:
    name = OutboxName.parse("outbox")
    with psycopg.connect(database, autocommit=True) as owner:
        init_outbox(owner, name)
        park_by_hand(owner, "a")
        role = "operate_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"][-12:]
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        try:
            for statement in grant_statements(owner, name, "operate", role):
                owner.execute(statement.encode())
            with closing(psycopg.connect(database, user=role, password="secret", autocommit=True)) as connection:
                requests = ParkedRequests(connection, name)
                assert requests.ask("discard", Choice(everything=True), reason="why") == 1
                assert requests.listed(Choice(everything=True))[0]["requested_by"] == role
                for statement in (
                    "DELETE FROM outbox_parked",
                    "UPDATE outbox_parked SET kafka_value = ''",
                    "UPDATE outbox_parked SET discarded_at = now()",
                    "UPDATE outbox_shard SET view = NULL",
                    "DELETE FROM outbox",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(statement.encode())
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
