"""Rows of databases whose encoding is not UTF-8, also those that are no text in any encoding."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hostile.innocents import Innocents
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

COLUMNS = "(kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
NO_TEXT = {
    "published": f"{COLUMNS} VALUES ({{topic}}, E'\\xff-key', E'\\xfe', ARRAY['n'], ARRAY[E'\\xfd'])",
    "a name that is no text": f"{COLUMNS} VALUES ({{topic}}, 'header', 'v', ARRAY[E'\\xff'], ARRAY['v'])",
    "a topic that is no text": f"{COLUMNS} VALUES (E'\\xff', 'topic', 'v', ARRAY['n'], ARRAY['v'])",
}


@pytest.fixture
def encoding() -> str:
    return "SQL_ASCII"


@pytest.fixture
def database(postgres: EmbeddedPostgres, encoding: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        made = "CREATE DATABASE {} ENCODING {} LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
        connection.execute(sql.SQL(made).format(sql.Identifier(name), sql.Literal(encoding)))
    yield make_conninfo(postgres.dsn(name), client_encoding="UTF8")
    postgres.drop_database(name)


def others(innocents: Innocents) -> list[tuple[Any, ...]]:
    """Key, value and headers of what is in the topic beside the innocents."""
    found = [(message.key(), message.value(), message.headers()) for message in innocents.outbox.committed()]
    return [each for each in found if not (each[0] or b"").startswith(b"k")]


def test_what_is_no_text_is_published_as_it_is_or_parked(innocents: Innocents) -> None:
    def write_them() -> None:
        for row in NO_TEXT.values():
            topic = sql.Literal(innocents.outbox.topic)
            with psycopg.connect(innocents.outbox.database) as connection:
                connection.execute(sql.SQL(f"INSERT INTO outbox {row}").format(topic=topic))  # type: ignore[arg-type]

    with innocents.harvested():
        innocents.around(write_them)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "they wait")
        innocents.stand(named="not UTF-8")
        assert "encoding is SQL_ASCII" in innocents.command("check", wants=None)
        assert innocents.outbox.query("SELECT kafka_key, cause FROM outbox_parked ORDER BY 1") == [
            ("header", "headers"),
            ("topic", "topic_name"),
        ]
        found, *again = others(innocents)
        assert found == (b"\xff-key", b"\xfe", [("n", b"\xfd")])
        assert not again or innocents.outbox.settings.get("delivery") == "at_least_once"
        assert all(each == found for each in again)


@pytest.mark.parametrize("encoding", ["LATIN1"])
@pytest.mark.parametrize("mode", ["single"])
def test_another_encoding_is_published_as_utf_8_and_reasons_fit_into_it(innocents: Innocents) -> None:
    row = f"INSERT INTO outbox {COLUMNS} VALUES ({{topic}}, E'\\u00e9', E'\\u00e9', ARRAY['n'], ARRAY[E'\\u00e9'])"
    with innocents.harvested():
        innocents.around(row)
        innocents.around("INSERT INTO outbox (kafka_topic, kafka_key) VALUES (repeat(E'\\u00e9', 249), 'long')")
        innocents.stand(named="not a name that Kafka allows")
        assert others(innocents) == [("é".encode(), "é".encode(), [("n", "é".encode())])]
