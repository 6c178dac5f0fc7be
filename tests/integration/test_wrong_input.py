"""Commands as a new user types them: with wrong input, at a wrong time, or once more."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from support.harvesting import AS_OF_VERSION_4, CALM, COMMAND, Outbox, Process, make_outbox, wait_until
from support.leading import Leader

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION

Run = Callable[..., Result]
NAME = OutboxName.parse("outbox")
MONTH = 30 * 86400.0


@pytest.fixture
def settings(database: str, kafka: EmbeddedKafka) -> dict[str, Any]:
    return {"data_source": database, "kafka": {"bootstrap.servers": kafka.bootstrap}}


@pytest.fixture
def run(settings: dict[str, Any], tmp_path: Path) -> Run:
    def run(*command: str, status: int = 0, **more: Any) -> Result:
        file = tmp_path / "outbox.yaml"
        file.write_text(yaml.safe_dump({**settings, **more}))
        result = CliRunner().invoke(main, [*command, "-f", str(file)])
        assert result.exit_code == status, result.output
        return result

    return run


def test_a_mistyped_schema_is_not_created(run: Run, connection: psycopg.Connection[Any]) -> None:
    for command in (["init"], ["init", "--print"]):
        output = run(*command, outbox_table="ap.outbox", status=1).output
        assert re.search(r"there is no schema ap in database test_\w+\. Correct outbox_table, or give", output)
    assert connection.execute("SELECT to_regnamespace('ap')").fetchall() == [(None,)]
    assert "created" in run("init", "--create-schema", outbox_table="ap.outbox").output


def test_types_of_a_table_that_is_there_are_not_passed_over(run: Run) -> None:
    run("init")
    for option, column, present in (
        ("--key-type", "kafka_key", "varchar(100)"),
        ("--value-type", "kafka_value", "varchar(10000)"),
        ("--header-type", "kafka_header_values", "text"),
    ):
        output = run("init", option, "bytea", status=1).output
        assert f"its {column} is {present}, not bytea" in output
    assert run("init", "--value-type", "VARCHAR(10000)", "--header-type", "text").output.endswith("already complete\n")


def test_a_replay_without_an_archive_says_how_to_keep_one(run: Run) -> None:
    run("init")
    output = run("replay", "--all", "--yes", status=1).output
    assert "what is published is not kept" in output
    assert "`purge: archive`" in output


def test_a_replay_that_is_repeated_says_that_nothing_was_stashed(run: Run, connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    stash(connection, [OutboxRecord("t", "k", str(n)) for n in range(20)])
    columns = "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
    connection.execute(
        f"WITH gone AS (DELETE FROM outbox RETURNING *) INSERT INTO outbox_archive ({columns}, transaction_id,"
        f" archived_at, view) SELECT {columns}, transaction_id, now(), gen_random_uuid() FROM gone".encode()
    )
    replay = ("replay", "--all", "--yes", "--id", "once")
    assert "20 records are stashed again, with the header outbox-replay: once" in run(*replay).output
    assert "replay once had finished, so nothing was stashed now" in run(*replay).output
    told = json.loads(run(*replay, "--output", "json").stdout)
    assert told == {"replay_id": "once", "records": {"t": 20}, "stashed_now": 0, "stashed": 20}
    assert connection.execute("SELECT count(*) FROM outbox").fetchall() == [(20,)]


def test_a_handover_without_a_leader_ends_at_once(run: Run, database: str) -> None:
    with closing(Leader(database)) as leader:
        leader.beat()
        leader.connection.execute("UPDATE outbox_shard SET heartbeat_at = now() - interval '1 hour'")
        output = run("handover", status=1).output
        assert re.search(r"nobody leads shard 0, and test was last heard from 60 min ago\. Start a harvester", output)
        assert leader.connection.execute("SELECT handover_asked_at FROM outbox_shard").fetchall() == [(None,)]
    assert "has no shard 7" in run("handover", "--shard", "7", status=1).output


def test_a_pause_without_a_leader_is_seen(run: Run) -> None:
    run("init")
    assert run("resume").output == "it was not paused: nobody leads now; the next leader sees it\n"
    assert run("pause").output == "paused: nobody leads now; the next leader sees it\n"
    assert "nobody has led yet, and the outbox is paused" in run("status").output
    assert re.search(r'dangerous: "?outbox"? is paused since .* UTC: .*`airflow-outbox resume`', run("check").output)
    assert json.loads(run("pause", "--output", "json").stdout)["was_paused"]
    assert run("resume").output.startswith("resumed")
    assert "paused" not in run("check").output


def test_a_backlog_that_nobody_harvests_is_a_failure(run: Run, connection: psycopg.Connection[Any]) -> None:
    run("init")
    run("status")
    stash(connection, OutboxRecord("t", "k", "v"))
    for output in ("table", "json"):
        result = run("status", "--output", output, status=3)
        assert "fails: nobody leads; 1 records wait" in result.stderr
    assert json.loads(result.stdout)["verdict"]["state"] == "no_leader"


def test_a_parked_record_that_is_not_there_is_named_as_missing(run: Run) -> None:
    run("init")
    assert "no parked record matches" in run("parked", "show", "--id", "99", status=1).output
    assert "none matches" in run("parked", "list", "--id", "99").stderr
    assert run("parked", "list", "--id", "99", "--output", "json").stdout == "[]\n"


def test_load_that_can_not_be_is_not_stashed(run: Run, connection: psycopg.Connection[Any]) -> None:
    run("init")
    output = run("pump", "--topic", "no-such-topic", status=1).output
    assert "topic no-such-topic does not exist: its records would be parked" in output
    assert "not a legal name" in run("pump", "--topic", "no such topic", status=1).output
    for option, wrong in {"records": "-5", "keys": "0", "size": "-1", "transaction": "0", "rollbacks": "2"}.items():
        assert f"--{option}" in run("pump", "--topic", "t", f"--{option}", wrong, status=2).output
    assert "--rate" in run("pump", "--topic", "t", "--rate", "0", status=2).output
    assert connection.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)]


def test_load_is_generated_while_kafka_is_away(run: Run) -> None:
    run("init")
    away = {"bootstrap.servers": "127.0.0.1:1"}
    result = run("pump", "--topic", "t", "--records", "10", kafka=away)
    assert "10 records stashed" in result.stdout
    assert "nobody knows whether topic t is there: can't reach Kafka at 127.0.0.1:1: " in result.stderr


def test_a_setting_that_kafkas_client_does_not_know_is_named(run: Run, settings: dict[str, Any]) -> None:
    run("init")
    wrong = {**settings["kafka"], "compresion.type": "lz4"}
    for command in ("init", "check"):
        output = run(command, kafka=wrong, status=1).output
        assert "Kafka's client knows no setting compresion.type. Correct kafka" in output
        assert "KafkaError" not in output
    output = run("check", kafka={**settings["kafka"], "security.protocol": "tls"}, status=1).output
    assert 'Kafka\'s client refuses its settings: Invalid value "tls" for configuration property' in output


def test_a_check_knows_the_settings_of_producer_and_consumer(run: Run) -> None:
    for created in (False, True):
        if created:
            run("init")
        for group in ("kafka_producer", "kafka_consumer"):
            output = run("check", status=1, **{group: {"nonsense": 1}}).output
            assert f"missing: Kafka's client knows no setting nonsense. Correct {group}" in output
    assert (
        "missing" not in run("check", kafka_producer={"linger.ms": 5}, kafka_consumer={"fetch.wait.max.ms": 5}).output
    )


def test_a_ticket_of_a_transaction_to_come_is_refused(run: Run, database: str) -> None:
    with closing(Leader(database)) as leader, psycopg.connect(database) as open_now:
        ticket = str(leader.stash())
        begun = ticket.rpartition("/")[0]
        assert "has not begun" in run("status", "--ticket", f"{begun}/{10**12}", status=1).output
        running = str(stash(open_now, OutboxRecord("t", "k", "v")))
        assert "has not ended" in run("status", "--ticket", running, status=3).output
        open_now.commit()
        assert "is committed; " in run("status", "--ticket", running, status=3).output


def test_a_ticket_is_not_taken_for_one_to_come_where_a_transaction_has_one_snapshot(
    database: str, leader: Leader
) -> None:
    from airflow_outbox.tickets.published import TicketState, ticket_status

    with psycopg.connect(database) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        ticket = leader.stash()
        assert ticket_status(reader, ticket).state is TicketState.OPEN
        reader.commit()
        assert ticket_status(reader, ticket).state is TicketState.WAITING


def test_no_line_of_kafkas_client_reaches_the_terminal(settings: dict[str, Any], run: Run, tmp_path: Path) -> None:
    run("init")
    file = tmp_path / "away.yaml"
    file.write_text(yaml.safe_dump({**settings, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}))
    done = subprocess.run([*COMMAND, "check", "-f", str(file)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("can't reach Kafka at 127.0.0.1:1: Connect to ipv4#127.0.0.1:1 failed: ") == 1
    assert "suppressed" not in done.stdout


def test_a_harvester_that_can_not_reach_kafka_says_so_once_on_a_terminal(
    settings: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    run("init")
    file = tmp_path / "away.yaml"
    file.write_text(yaml.safe_dump({**settings, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}))
    terminal, end = pty.openpty()
    with os.fdopen(terminal, "rb"):
        command = [*COMMAND, "harvest", "-f", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, timeout=300, check=False)
        os.close(end)
        said = os.read(terminal, 65_536).decode()  # all that was written fits into its buffer
    lines = said.splitlines()
    assert len(lines) == 1, said
    [line] = lines
    assert line.startswith("Error: can't reach Kafka at 127.0.0.1:1: ")
    assert done.returncode == 1


def test_values_come_from_the_environment(run: Run, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = psycopg.conninfo.conninfo_to_dict(settings["data_source"])["dbname"]
    source = settings["data_source"].replace(f"dbname={name}", "dbname=${SHOP}")
    output = run("init", data_source=source, status=1).output
    assert "data_source: the environment variable SHOP is not set" in output
    monkeypatch.setenv("SHOP", str(name))
    assert "created" in run("init", data_source=source).output


def test_the_printed_sql_makes_what_init_makes(run: Run, connection: psycopg.Connection[Any]) -> None:
    def shape() -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT relname, relkind, attname, format_type(atttypid, atttypmod), attnotnull, relacl::text"
            " FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped"
            " WHERE relnamespace = to_regnamespace('app') UNION ALL"
            " SELECT proname, 'f', pg_get_userbyid(proowner), prosrc, prosecdef, proacl::text FROM pg_proc"
            " WHERE pronamespace = to_regnamespace('app') UNION ALL"
            " SELECT tgname, 't', tgenabled::text, pg_get_triggerdef(pg_trigger.oid), NULL, NULL"
            " FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = to_regnamespace('app')"
            " UNION ALL SELECT nspname, 'n', NULL, NULL, NULL, nspacl::text FROM pg_namespace WHERE nspname ~ '^app'"
            " ORDER BY 1, 2, 3, 4"
        ).fetchall()

    options = ["--function", "--key-type", "bytea", "--create-schema"]
    more = {"outbox_table": "app.outbox", "purge": "archive"}
    script = run("init", "--print", *options, **more).output
    assert shape() == []
    connection.execute(script.encode())
    printed = shape()
    assert len(printed) > 100
    output = run("init", *options[:-1], **more).output
    assert output.startswith("created topic"), output
    assert shape() == printed
    assert run("init", "--print", *options, **more).output == '-- "app"."outbox" was already complete\n'
    connection.execute("DROP SCHEMA app, app_outbox_staging CASCADE")
    run("init", *options, **more)
    assert shape() == printed


def test_the_printed_sql_migrates_as_init_does(run: Run, connection: psycopg.Connection[Any]) -> None:
    run("init")
    connection.execute(AS_OF_VERSION_4.encode())
    script = run("init", "--print").output
    assert connection.execute("SELECT schema_version FROM outbox_leader").fetchall() == [(4,)]
    connection.execute(script.encode())
    assert connection.execute("SELECT schema_version FROM outbox_state").fetchall() == [(SCHEMA_VERSION,)]
    assert run("init", "--print").output == '-- "outbox" was already complete\n'
    assert run("init").output == '"outbox" was already complete\n'


def test_a_role_that_may_make_nothing_can_print_it(
    run: Run, connection: psycopg.Connection[Any], settings: Any
) -> None:
    role = psycopg.conninfo.conninfo_to_dict(settings["data_source"])["dbname"]
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'; REVOKE CREATE ON SCHEMA public FROM PUBLIC".encode())
    try:
        source = psycopg.conninfo.make_conninfo(settings["data_source"], user=role, password="pw")
        assert "BEGIN;\n" in run("init", "--print", data_source=source).output
        output = run("init", data_source=source, status=1).output
        assert output.startswith("Error: nothing was made: permission denied")
        assert "`airflow-outbox init --print`" in output
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_what_goes_without_effect_is_refused(run: Run, connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME, archive_retention=MONTH)
    for command, status, says in (
        ("trail --limit -1", 2, "--limit"),
        ("parked list --limit 0", 2, "--limit"),
        ("parked show --id 1 --id 2", 1, "no parked record matches"),
        ("audit --table outbox_archive --examples -1", 2, "--examples"),
        ("audit --table outbox_archive --topic nowhere", 1, "topic nowhere is neither in"),
        ("check --topic t", 2, "--topic goes with --acls"),
        ("status --history 2d", 2, "goes back 24h"),
        ("status --history 1h --shard 3", 1, "no shard 3. Its shards are 0 to 0"),
        ("status --ticket x --fail-unless-leading", 2, "--ticket goes with no option"),
        ("status --ticket x", 1, "not a ticket"),
        ("handover --shard 64", 2, "--shard"),
        ("handover", 1, "nobody leads shard 0. Start a harvester first"),
        ("reshard 4 --wait -1", 2, "--wait"),
        ("reshard --withdraw", 0, "nobody had asked for another number"),
        ("replay --from-id 9 --to-id 3", 1, "the ids end at 3, before they begin, at 9"),
        ("replay --since 2026-01-02 --until 2026-01-01", 1, "the times end at"),
        ("replay --all --transaction 0", 2, "--transaction"),
        ("clusters attach west", 1, "the outbox has no such cluster. It has primary"),
        ("clusters attach west --wait -1", 2, "--wait"),
        ("clusters detach west", 1, "has no cluster west"),
        ("clusters promote west", 1, "the configuration names no cluster west. It names primary"),
        ("parked retry --all", 0, "no parked record waits, so nothing was asked"),
        ("parked discard --all --reason x", 0, "no parked record waits, so nothing was asked"),
        ("grant --look nobody.at.all --run", 1, "Create the role first"),
        ("rename outbox outbox", 1, "has this name"),
    ):
        assert says in run(*command.split(), status=status).output, command
    assert "--reason is empty" in run("adopt", "--reason", " ", status=2).output


def test_an_option_that_is_missing_is_named_with_its_variable() -> None:
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == 2
    assert "AIRFLOW_OUTBOX_FILE" in result.output


def test_what_init_has_made_is_told_when_kafka_is_away(run: Run) -> None:
    result = run("init", kafka={"bootstrap.servers": "127.0.0.1:1"}, status=1)
    assert 'created "outbox" and the tables beside it' in result.stderr
    assert "can't reach Kafka at 127.0.0.1:1" in result.stderr


def test_a_request_that_waits_for_a_leader_says_so(run: Run, database: str) -> None:
    run("init")
    with closing(Leader(database)) as leader:
        leader.beat()
        leader.connection.execute("UPDATE outbox_shard SET heartbeat_at = now() - interval '1 hour'")
        result = run("reshard", "2", "--wait", "0", status=1)
    assert "nobody leads now, so this waits until a harvester starts" in result.stderr
    assert "still has 1 shards" in result.stderr


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=CALM)


def test_a_pause_and_a_handover_are_answered_in_json(
    outbox: Outbox, harvester: Process, start: Callable[..., Process], run: Run, tmp_path: Path
) -> None:
    harvester.wait_for("took_over")
    assert json.loads(run("pause", "--output", "json", limits=CALM).stdout) == {
        "outbox": '"outbox"',
        "paused": True,
        "was_paused": False,
        "is_led": True,
    }
    assert run("resume", limits=CALM).output == "resumed: leaders see it within a second\n"
    start(child=True)
    answers: list[Result] = []

    def is_handed_over() -> bool:
        """Until the other one has joined, and the group has a leader again, it is refused."""
        answers.append(CliRunner().invoke(main, ["handover", "--output", "json", "-f", str(tmp_path / "outbox.yaml")]))
        return answers[-1].exit_code == 0

    wait_until(is_handed_over, doing=lambda: str([answer.output for answer in answers]))
    [shard] = json.loads(answers[-1].stdout)["shards"]
    assert shard["before"] != shard["leader"]


def test_an_outbox_is_renamed_by_a_command(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, run: Run, connection: psycopg.Connection[Any]
) -> None:
    make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    connection.execute("ALTER TABLE outbox RENAME TO events")
    output = run("init", outbox_table="events", status=1).output
    [command] = re.findall(r"`airflow-outbox (rename \S+ \S+)`", output)
    output = run(*command.split(), outbox_table="events").output
    assert 'give "events" as outbox_table to its harvesters' in output
    assert run("init", outbox_table="events").output == '"events" was already complete\n'
