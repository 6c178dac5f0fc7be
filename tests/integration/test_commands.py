"""`airflow-outbox init · check · grant` as typed, on the real servers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.harvesting import COMMAND, GOHARVEST_TABLE, make_topic, partitions_of, wait_until

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION

Run = Callable[..., Result]


@pytest.fixture
def file(database: str, kafka: EmbeddedKafka, tmp_path: Path) -> Path:
    path = tmp_path / "outbox.yaml"
    path.write_text(
        yaml.safe_dump(
            {"data_source": database, "outbox_table": "app.outbox", "kafka": {"bootstrap.servers": kafka.bootstrap}}
        )
    )
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA app")
    return path


@pytest.fixture
def run(file: Path, kafka: EmbeddedKafka) -> Run:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def run(command: str, *arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(main, [command, "-f", str(file), *arguments])
        assert result.exit_code == status, result.output
        for topic in re.findall("^created topic (.+)$", result.output, re.MULTILINE):
            wait_until(lambda: partitions_of(admin, topic))  # noqa: B023  # the broker knows it, too
        return result

    return run


def test_init_makes_tables_and_topic_once(run: Run, kafka: EmbeddedKafka) -> None:
    first = run("init").output.splitlines()
    assert first[0] == f'created "app"."outbox" and the tables beside it, schema version {SCHEMA_VERSION}'
    topic = first[1].removeprefix("created topic ")
    assert re.fullmatch(r"airflow-outbox\.[0-9a-f-]{36}\.leader", topic)
    assert partitions_of(AdminClient({"bootstrap.servers": kafka.bootstrap}), topic) == 1
    assert run("init").output == '"app"."outbox" was already complete\n'


def test_init_with_other_types(run: Run, connection: psycopg.Connection[Any]) -> None:
    run("init", "--key-type", "text", "--value-type", "bytea")
    types = connection.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'app.outbox'::regclass AND attname IN ('kafka_key', 'kafka_value') ORDER BY attname"
    ).fetchall()
    assert types == [("text",), ("bytea",)]
    assert "'json' is not a type" in run("init", "--key-type", "json", status=1).output


@pytest.mark.parametrize("words", [["check"], ["parked", "list"], ["status"], ["trail", "--output", "json"]])
def test_output_that_can_not_be_written_is_one_line(run: Run, file: Path, words: list[str]) -> None:
    run("init")
    with open("/dev/full", "w") as full:
        command = [*COMMAND, *words, "-f", str(file)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "Error: the output can't be written: No space left on device\n")


def test_letters_that_the_encoding_lacks_come_as_escapes(run: Run, file: Path) -> None:
    run("init")
    run("pause", "--on-behalf-of", "Zoë, 東京")
    done = subprocess.run(
        [*COMMAND, "trail", "-f", str(file)],
        stdout=subprocess.PIPE,
        encoding="latin-1",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=True,
    )
    assert "Zoë, \\u6771\\u4eac" in done.stdout


def test_check_before_init_says_what_to_run(run: Run) -> None:
    result = run("check", status=1)
    assert result.output.startswith('missing: there is no table "app"."outbox". Run `airflow-outbox init`')


def test_check_names_dangers_but_does_not_fail_for_them(run: Run) -> None:
    run("init")
    lines = run("check").output.splitlines()
    assert all(
        line.startswith(("dangerous: topic airflow-outbox.", "dangerous: broker 1 has transaction.state.log."))
        for line in lines
    )
    assert any("has one replica" in line for line in lines)
    assert any("min.insync.replicas=1" in line for line in lines)


def test_check_asks_that_the_ledger_be_compacted(run: Run, kafka: EmbeddedKafka) -> None:
    run("init")
    assert "cleanup.policy" not in run("check").output
    ledger = re.search(r"airflow-outbox\.\S+\.ledger", run("check").output)
    assert ledger is not None
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, ledger[0], incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()
    says = f"dangerous: topic {ledger[0]}, the ledger, has cleanup.policy=compact,delete"
    wait_until(lambda: says in run("check").output)


@pytest.mark.parametrize(
    ("damage", "says", "status"),
    [
        ("ALTER SEQUENCE app.outbox_id_seq CACHE 50", "dangerous: .*CACHE 50", 0),
        ("ALTER TABLE app.outbox DROP COLUMN transaction_id CASCADE", "missing: .*no column transaction_id", 1),
        ("ALTER TABLE app.outbox DROP COLUMN kafka_value", "missing: .*no column kafka_value", 1),
        (
            "ALTER TABLE app.outbox ALTER COLUMN kafka_value TYPE jsonb USING '{}'",
            "missing: .*kafka_value is jsonb; it must be",
            1,
        ),
        ("DROP TABLE app.outbox_state CASCADE", "missing: .*airflow-outbox init", 1),
        ("DELETE FROM app.outbox_state", "missing: .*is empty", 1),
        ("UPDATE app.outbox_state SET schema_version = 99", "missing: .*schema version 99", 1),
        (
            "INSERT INTO app.outbox (kafka_topic, kafka_key) VALUES ('no-such-topic', 'k')",
            "missing: records wait for topic no-such-topic, which does not exist",
            1,
        ),
    ],
)
def test_check_finds_what_is_wrong(
    run: Run, connection: psycopg.Connection[Any], damage: str, says: str, status: int
) -> None:
    run("init")
    connection.execute(damage)  # type: ignore[call-overload]
    assert re.search(says, run("check", status=status).output)


def test_check_reports_both_ends_when_neither_answers(run: Run, file: Path) -> None:
    settings = {"data_source": "host=127.0.0.1 port=1 connect_timeout=1", "kafka": {"bootstrap.servers": "127.0.0.1:1"}}
    file.write_text(yaml.safe_dump(settings))
    output = run("check", status=1).output
    assert "missing: can't connect to Postgres" in output
    assert "missing: can't reach Kafka at 127.0.0.1:1" in output


def test_check_as_a_role_that_may_not_harvest_names_the_grant(
    run: Run, connection: psycopg.Connection[Any], file: Path, database: str
) -> None:
    run("init")
    role = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")  # type: ignore[call-overload]
    try:
        run("grant", "--look", role, "--run")
        settings = yaml.safe_load(file.read_text())
        settings["data_source"] = psycopg.conninfo.make_conninfo(database, user=role, password="pw")
        owners = file.read_text()
        file.write_text(yaml.safe_dump(settings))
        assert f"Run `airflow-outbox grant --harvest {role}`" in run("check", status=1).output
        file.write_text(owners)
        run("grant", "--harvest", str(role), "--run")
        file.write_text(yaml.safe_dump(settings))
        assert "missing" not in run("check").output
    finally:
        connection.execute(f"DROP OWNED BY {role}")  # type: ignore[call-overload]
        connection.execute(f"DROP ROLE {role}")  # type: ignore[call-overload]


def test_grant_prints_statements_that_run_as_they_are(run: Run, connection: psycopg.Connection[Any]) -> None:
    run("init")
    assert "name at least one role" in run("grant", status=2).output
    output = run("grant", "--stash", "PUBLIC ROLE", "--job", "x").output
    assert 'TO "PUBLIC ROLE";' in output
    assert all(line.startswith("GRANT ") and line.endswith(";") for line in output.splitlines())
    assert "nothing was granted" in run("grant", "--look", "nobody at all", "--run", status=1).output


def test_topics_of_waiting_records_are_watched(
    run: Run, connection: psycopg.Connection[Any], kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    run("init")
    topic = topic_prefix + "data"
    make_topic(
        {"bootstrap.servers": kafka.bootstrap}, topic, partitions=1, config={"unclean.leader.election.enable": "true"}
    )
    connection.execute("INSERT INTO app.outbox (kafka_topic, kafka_key) VALUES (%s, 'k')", (topic,))
    assert f"topic {topic} allows unclean leader election" in run("check").output


def test_goharvests_table_gets_the_column_that_exactly_once_needs(
    run: Run, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(GOHARVEST_TABLE.format("app.outbox").encode())
    refused = run("init", status=1).output
    assert '"app"."outbox" has no column transaction_id' in refused
    assert "give --transaction-id, which adds it by rewriting" in refused
    init_outbox(connection, OutboxName.parse("app.outbox"))  # as for `delivery: at_least_once`
    assert "Run `airflow-outbox init --transaction-id`" in " ".join(run("check", status=1).output.split())
    run("init", "--transaction-id")
    assert "transaction_id" not in run("check").output


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("kafka_value", "jsonb"),
        ("kafka_key", "uuid"),
        ("kafka_topic", "character"),
        ("kafka_header_values", "character varying[]"),
        ("kafka_value", "app.message"),
    ],
)
def test_a_column_of_a_type_that_is_not_read_is_refused_by_name(
    run: Run, connection: psycopg.Connection[Any], column: str, kind: str
) -> None:
    connection.execute("CREATE DOMAIN app.message AS text")
    connection.execute(GOHARVEST_TABLE.format("app.outbox").encode())
    change = f"ALTER TABLE app.outbox ALTER {column} TYPE {kind} USING NULL"
    connection.execute(change.encode())
    refused = run("init", "--transaction-id", status=1).output
    assert f'"app"."outbox".{column} is {kind}; it must be ' in refused


def test_a_bad_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "outbox.yaml"
    for command in ("init", "check", "harvest"):
        result = CliRunner().invoke(main, [command, "-f", str(path)])
        said = f"Error: can't read {path}: No such file or directory. Give a file that can be read\n"
        assert (result.exit_code, result.output) == (1, said)
