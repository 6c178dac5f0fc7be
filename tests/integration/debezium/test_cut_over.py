"""There and back: each row is either Debezium's or ours, whoever writes meanwhile.

In the place of Debezium stands what it reads: its slot, by its publication.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo
from support.debezium import BETWEEN, EVENTS, WRITERS, Writers

from airflow_outbox.cli import main
from airflow_outbox.debezium.finding import DebeziumSeverity
from airflow_outbox.debezium.operating import examine, go_back, switch
from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "table.include.list": "public.events",
    "publication.autocreate.mode": "disabled",
    "key.converter": CONVERTER,
    "value.converter": CONVERTER,
}
READ = """
SELECT data FROM pg_logical_slot_get_binary_changes(
    'debezium', NULL, NULL, 'proto_version', '1', 'publication_names', 'dbz_publication'
)
"""


@pytest.fixture
def config(logical_database: str) -> HarvestConfig:
    """An outbox, and an application's table that Debezium reads."""
    with psycopg.connect(logical_database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), key_type="text", value_type="text")
        connection.execute(EVENTS)
        connection.execute("CREATE PUBLICATION dbz_publication FOR TABLE events")
        connection.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
    settings = {"data_source": logical_database, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}
    return HarvestConfig.validated(settings, source="test")


@pytest.fixture
def own(config: HarvestConfig) -> Iterator[psycopg.Connection[Any]]:
    with connect(config.data_source, purpose="test") as connection:
        yield connection


def debeziums(connection: psycopg.Connection[Any]) -> list[int]:
    """The ids of the rows that Debezium would publish, and has not yet."""
    inserts = [bytes(data) for (data,) in connection.execute(READ) if bytes(data)[:1] == b"I"]
    return [int(data[13 : 13 + int.from_bytes(data[9:13])]) for data in inserts]


def ours(connection: psycopg.Connection[Any]) -> list[int]:
    return [int(value) for (value,) in connection.execute("SELECT kafka_value FROM public.outbox ORDER BY id")]


def severities(connection: psycopg.Connection[Any], config: HarvestConfig) -> dict[str, DebeziumSeverity]:
    [found] = examine(connection, config, settings=None, table=None)
    return {finding.text: finding.severity for finding in found.findings}


def test_there_and_back_under_load(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    with Writers(config.data_source) as writers:
        writers.go_on()
        done, _ = switch(own, config, settings=CONNECTOR, table=None, wait=120)
        assert len(done) == 2
        writers.go_on()
        assert len(go_back(own, config, table=None, wait=120)) == 2
        writers.go_on()
        switch(own, config, settings=CONNECTOR, table=None, wait=120)
        writers.go_on()
    assert switch(own, config, settings=CONNECTOR, table=None, wait=120)[0] == []  # it is there already
    [unread] = [text for text in severities(own, config) if "Debezium has still to publish" in text]
    theirs, mine = debeziums(own), ours(own)
    assert f" {len(theirs)} rows " in unread
    assert len(theirs) >= BETWEEN
    assert len(mine) >= BETWEEN
    assert sorted(theirs + mine) == sorted(writers.committed)
    for each in (theirs, mine):
        for writer in range(WRITERS):
            rows = [row for row in each if row % WRITERS == writer]
            assert rows == sorted(rows)
    assert not any(severity is DebeziumSeverity.DANGEROUS for severity in severities(own, config).values())


def test_a_publication_that_has_the_table_again_is_found(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    switch(own, config, settings=CONNECTOR, table=None, wait=120)
    # As a connector does that starts in the mode filtered.
    own.execute("ALTER PUBLICATION dbz_publication SET TABLE public.events")
    [twice] = [text for text, each in severities(own, config).items() if each is DebeziumSeverity.DANGEROUS]
    assert "they are published twice" in twice
    [line] = switch(own, config, settings=None, table=None, wait=120)[0]
    assert "out of publication" in line


def test_a_writer_without_an_end(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    with psycopg.connect(config.data_source) as writer:
        writer.execute("INSERT INTO events VALUES (1, 'events', 'k', 'v')")
        with pytest.raises(PostgresError, match=r"has not ended within 0.1 s.*Try again"):
            switch(own, config, settings=CONNECTOR, table=None, wait=0.1)
        writer.commit()
    assert debeziums(own) == [1]
    with pytest.raises(ConfigurationError, match="no table is stashed"):
        examine(own, config, settings=None, table=None)


def test_a_publication_of_all_tables_is_refused(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    own.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    settings = {**CONNECTOR, "publication.name": "everything"}
    [found] = examine(own, config, settings=settings, table=None)
    assert [each for each in found.findings if each.severity is DebeziumSeverity.REFUSED and "all tables" in each.text]
    with pytest.raises(ConfigurationError, match="has all tables"):
        switch(own, config, settings=settings, table=None, wait=120)
    assert own.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'airflow_outbox'").fetchone() == (0,)


def test_going_back_needs_the_publication(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    switch(own, config, settings=CONNECTOR, table=None, wait=120)
    own.execute("CREATE TABLE public.others (LIKE public.events)")
    for asked in (
        partial(go_back, own, config, table="public.others", wait=5),
        partial(examine, own, config, settings=None, table="public.others"),
    ):
        with pytest.raises(ConfigurationError, match=r"others.* are not stashed into .*events.* are. Name one of them"):
            asked()
    own.execute("DROP PUBLICATION dbz_publication")
    with pytest.raises(ConfigurationError, match=r"is gone.*--stay-out.*Nothing was changed"):
        go_back(own, config, table=None, wait=120)
    assert go_back(own, config, table="public.events", wait=120, stays_out=True) != []
    assert go_back(own, config, table=None, wait=120) == []


Run = Callable[..., Result]


@pytest.fixture
def run(config: HarvestConfig, tmp_path: Path) -> Run:
    """Run `airflow-outbox debezium …` with the outbox's configuration."""
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump({"data_source": config.data_source, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}))

    def run(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["debezium", command, "-f", str(file), *arguments])

    return run


def test_the_commands(run: Run, config: HarvestConfig, tmp_path: Path) -> None:
    connector, worker = tmp_path / "connector.json", tmp_path / "worker.properties"
    own = {name: value for name, value in CONNECTOR.items() if not name.endswith(".converter")}
    connector.write_text(yaml.safe_dump({"name": "shop", "config": own}))
    worker.write_text(f"# worker\nkey.converter={CONVERTER}\nvalue.converter = {CONVERTER}\nbootstrap.servers=x\n")
    refused = run("init", "--connector", str(connector))
    assert refused.exit_code == 1
    assert "value.converter: the connector names none" in refused.output
    both = ("--connector", str(connector), "--worker", str(worker))
    before = run("check", *both, "--output", "json")
    assert before.exit_code == 0, before.output
    [checked] = yaml.safe_load(before.output)
    assert checked["table"] == '"public"."events"'
    assert not checked["has_trigger"]
    made = run("init", *both)
    assert made.exit_code == 0, made.output
    assert "rows are stashed into" in made.output
    assert "nothing to do" in run("init").output
    with psycopg.connect(config.data_source) as connection:
        connection.execute("INSERT INTO events VALUES (1, 'events', 'k', 'v')")
        connection.commit()
        connection.execute("ALTER TABLE events ALTER payload TYPE varchar(9)")
        connection.execute("ALTER TABLE events ALTER id TYPE text")
        connection.commit()
    after = run("check", "--output", "json")
    assert after.exit_code == 0, after.output
    dropped = run("drop", "--output", "json")
    assert dropped.exit_code == 0, dropped.output
    assert "put" in yaml.safe_load(dropped.output)["done"][1]
    assert "no table is stashed" in run("drop").output


def test_without_a_connectors_file(run: Run) -> None:
    options = [f"{each}.converter={CONVERTER}" for each in ("key", "value")]
    options += ["transforms.outbox.route.topic.replacement=${routedByValue}"]
    made = run("init", "--table", "events", *(word for each in options for word in ("--set", each)))
    assert made.exit_code == 0, made.output


def test_the_application_needs_no_new_right(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    with ExitStack() as stack:
        own.execute("CREATE ROLE shop LOGIN PASSWORD 'p'")
        stack.callback(own.execute, "DROP ROLE shop")
        stack.callback(own.execute, "DROP OWNED BY shop")
        own.execute("GRANT INSERT, DELETE ON public.events TO shop")
        switch(own, config, settings=CONNECTOR, table=None, wait=120)
        strange = (
            "-c standard_conforming_strings=off -c extra_float_digits=0 -c DateStyle=German -c bytea_output=escape"
        )
        as_shop = make_conninfo(config.data_source, user="shop", password="p", options=strange)
        with psycopg.connect(as_shop) as application:
            application.execute("INSERT INTO events VALUES (1, 'events', 'k', '5')")
        assert ours(own) == [5]


def test_a_row_that_has_no_topic_is_parked_and_fails_nobody(
    config: HarvestConfig, own: psycopg.Connection[Any]
) -> None:
    own.execute("ALTER TABLE public.events ALTER aggregatetype DROP NOT NULL")
    switch(own, config, settings=CONNECTOR, table=None, wait=120)
    own.execute("INSERT INTO public.events VALUES (1, NULL, 'k', 'v'), (2, repeat('t', 300), 'k', 'v')")
    topics = [topic for (topic,) in own.execute("SELECT kafka_topic FROM public.outbox ORDER BY id")]
    assert topics == ["no topic: aggregatetype is null", f"too long: {('outbox.event.' + 't' * 300)[:239]}"]


def test_a_pattern_beside_a_table_is_refused(config: HarvestConfig, own: psycopg.Connection[Any]) -> None:
    settings = {**CONNECTOR, "table.include.list": "public.events,public.events_.*"}
    with pytest.raises(ConfigurationError, match=r"'public.events_.\*' is a pattern"):
        switch(own, config, settings=settings, table=None, wait=5)
    with pytest.raises(ConfigurationError, match=r"'public.events_.\*' is a pattern"):
        switch(own, config, settings={**settings, "table.include.list": "public.events_.*"}, table=None, wait=5)
    assert own.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'airflow_outbox'").fetchone() == (0,)


def test_what_differs_is_told_before_and_when_it_is_made(run: Run) -> None:
    options = [f"{each}.converter={CONVERTER}" for each in ("key", "value")]
    options += ["transforms.outbox.table.field.event.timestamp=created_at"]
    given = ("--table", "events", *(word for each in options for word in ("--set", each)))
    for command in ("check", "init"):
        told = run(command, *given)
        assert told.exit_code == 0, told.output
        [line] = [line for line in told.output.splitlines() if "table.field.event.timestamp" in line]
        assert line.startswith("differs: ")
        assert "table.fields.additional.placement=created_at:header" in line


@pytest.mark.parametrize("decimal_format", ["BASE64", "NUMERIC"])
def test_a_value_that_stops_debezium_fails_no_writer(
    config: HarvestConfig, own: psycopg.Connection[Any], decimal_format: str
) -> None:
    own.execute("ALTER TABLE public.events ADD price numeric(10,2)")
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    settings = {
        **CONNECTOR,
        "value.converter": json_converter,
        "value.converter.schemas.enable": "false",
        "transforms.outbox.table.expand.json.payload": "true",
        "transforms.outbox.table.fields.additional.placement": "price:envelope,price:header",
        "value.converter.decimal.format": decimal_format,
    }
    switch(own, config, settings=settings, table=None, wait=5)
    payloads = ["[1]", "[", '{"huge": 9223372036854775808}', "{", '{"far": 1e400}']
    for number, payload in enumerate(payloads):
        own.execute("INSERT INTO public.events VALUES (%s, 'events', 'k', %s, 'NaN')", [number, payload])
    values = [json.loads(value) for (value,) in own.execute("SELECT kafka_value FROM public.outbox ORDER BY id")]
    assert values == [{"payload": payload, "price": None} for payload in payloads]
