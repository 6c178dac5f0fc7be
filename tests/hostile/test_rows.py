"""Hostile rows among innocent ones: whatever Postgres lets in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
import pytest
from hostile.innocents import Innocents
from psycopg import sql

INTO = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value"
HEADERS = f"{INTO}, kafka_header_keys, kafka_header_values)"
MANY = "array_fill('n'::text, ARRAY[100000])"
EXACTLY_ONCE = ("single", "atomic")
AT_LEAST_ONCE = ("at least once",)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A statement that writes one, in which {key} stands for its name; and the cause that it is parked for, unless it
    is published.
    """

    statement: str
    cause: str | None
    modes: tuple[str, ...] = (*EXACTLY_ONCE, "at least once")


ROWS = {
    "consumers": Hostile(f"{INTO}) VALUES ('__consumer_offsets', {{key}}, 'v')", "topic_name"),
    "transactions": Hostile(f"{INTO}) VALUES ('__transaction_state', {{key}}, 'v')", "topic_name"),
    "two dimensions": Hostile(
        f"{HEADERS} VALUES ({{topic}}, {{key}}, 'v', ARRAY[['a', 'b'], ['c', 'd']], ARRAY[['a', 'b'], ['c', 'd']])",
        "headers",
    ),
    "names in two dimensions": Hostile(
        f"{HEADERS} VALUES ({{topic}}, {{key}}, 'v', ARRAY[['a'], ['c']], ARRAY['a', 'b'])", "headers"
    ),
    "null header": Hostile(f"{HEADERS} VALUES ({{topic}}, {{key}}, 'v', ARRAY['a'], ARRAY[NULL])", "headers"),
    "odd bounds": Hostile(
        f"{HEADERS} VALUES ({{topic}}, {{key}}, 'v', '[5:6]={{{{a,b}}}}', '[-1:0]={{{{a,b}}}}')", None
    ),
    "empty header name": Hostile(f"{HEADERS} VALUES ({{topic}}, {{key}}, 'v', ARRAY[''], ARRAY[''])", None),
    "many headers": Hostile(
        f"{HEADERS} SELECT {{topic}}, {{key}}, 'v', {MANY}, {MANY}",
        None,
    ),
    "a time without end": Hostile(f"{INTO}, create_time) VALUES ('no topic', {{key}}, 'v', 'infinity')", "topic_name"),
    "before all time": Hostile(f"{INTO}, create_time) VALUES ('no  topic', {{key}}, 'v', '-infinity')", "topic_name"),
    "the last year": Hostile(
        f"{INTO}, create_time) VALUES ('no   topic', {{key}}, 'v', '294276-12-31 23:59:59+00')", "topic_name"
    ),
    "before Christ": Hostile(f"{INTO}, create_time) VALUES ({{topic}}, {{key}}, 'v', '4713-01-01 BC')", None),
    "published at the end of time": Hostile(f"{INTO}, create_time) VALUES ({{topic}}, {{key}}, 'v', 'infinity')", None),
    "published in the last year": Hostile(
        f"{INTO}, create_time) VALUES ({{topic}}, {{key}}, 'v', '294276-12-31 23:59:59+00')", None
    ),
    "NaN": Hostile(f"{HEADERS} VALUES ({{topic}}, {{key}}, 'NaN', ARRAY['NaN'], ARRAY['NaN'])", None),
    "NaN that is parked": Hostile(
        f"{HEADERS} VALUES ('not a name', {{key}}, 'NaN', ARRAY['NaN'], ARRAY['NaN'])", "topic_name"
    ),
    "a terminal's escapes": Hostile(
        f"{HEADERS} VALUES (E'\\x1b]0;\\x07', {{key}}, E'\\x1b[2J\\u009b\\u202e', ARRAY[E'\\x1b'], ARRAY[E'\\x7f'])",
        "topic_name",
    ),
    "escapes in a key \x1b[31m\x7f\u202e": Hostile(f"{INTO}) VALUES ('[/x]', {{key}}, 'v')", "topic_name"),
    "a long name": Hostile(f"{INTO}) VALUES (repeat('é', 249), {{key}}, 'v')", "topic_name"),
    "a chosen id": Hostile(f"{INTO}, id) VALUES ({{topic}}, {{key}}, 'v', 100000)", "id", EXACTLY_ONCE),
    "the greatest id": Hostile(f"{INTO}, id) VALUES ({{topic}}, {{key}}, 'v', {2**63 - 1})", "id", EXACTLY_ONCE),
    "a chosen id, at least once": Hostile(f"{INTO}, id) VALUES ({{topic}}, {{key}}, 'v', 100000)", None, AT_LEAST_ONCE),
    "the greatest id, at least once": Hostile(
        f"{INTO}, id) VALUES ({{topic}}, {{key}}, 'v', {2**63 - 1})", None, AT_LEAST_ONCE
    ),
    "an id below all": Hostile(f"{INTO}, id) VALUES ({{topic}}, {{key}}, 'v', -5)", None),
    "an old transaction": Hostile(f"{INTO}, transaction_id) VALUES ({{topic}}, {{key}}, 'v', '3')", None),
    "a transaction to come": Hostile(f"{INTO}, transaction_id) VALUES ({{topic}}, {{key}}, 'v', '99999999')", None),
}

UNAWARE = """
from airflow_outbox.harvest import __main__
from airflow_outbox.harvest.kafka import topic_cache
topic_cache.is_kafkas_own = lambda topic: False
__main__.main()
"""
"""A harvester that takes every topic of a legal name for one that records may go to."""


def rows_of(mode: str) -> Mapping[str, Hostile]:
    return {name: hostile for name, hostile in ROWS.items() if mode in hostile.modes}


def test_each_is_parked_or_published_and_the_innocents_come_out(innocents: Innocents, mode: str) -> None:
    rows = rows_of(mode)

    def write_them() -> None:
        with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
            connection.execute("ALTER TABLE outbox DROP CONSTRAINT headers_have_one_dimension")
            for name, hostile in rows.items():
                parts = {"key": sql.Literal(name), "topic": sql.Literal(innocents.outbox.topic)}
                connection.execute(sql.SQL(hostile.statement).format(**parts))  # type: ignore[arg-type]
                innocents.write(records=20)
            connection.execute("UPDATE outbox_shard SET last_error = E'[/x] \\x1b[2J', last_error_at = now()")
            connection.execute(
                "INSERT INTO outbox_trouble (member, kind, error, told_at)"
                " VALUES (E'[/y] \\x1b[2J', 'kafka', E'[/x] \\x1b[2J', now() + interval '14 s')"
            )

    with innocents.harvested() as process:
        innocents.around(write_them)
        innocents.stand(named="__consumer_offsets")
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "hostile records wait")
        parked = dict(innocents.outbox.query("SELECT kafka_key, cause FROM outbox_parked"))
        assert parked == {name: hostile.cause for name, hostile in rows.items() if hostile.cause is not None}
        assert process.failures == []
        seen = [(message.key() or b"").decode() for message in innocents.outbox.committed()]
        published = {name for name, hostile in rows.items() if hostile.cause is None}
        assert {key for key in seen if not key.startswith("k")} == published
        innocents.around("SELECT 1")


@pytest.mark.parametrize("mode", EXACTLY_ONCE)
def test_a_topic_that_only_a_transaction_is_refused_is_parked(innocents: Innocents) -> None:
    hostile = (
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('__consumer_offsets', 'h'), ('__consumer_offsets', 'i')"
    )
    with innocents.harvested(command=[sys.executable, "-c", UNAWARE]):
        innocents.around(hostile)
        innocents.stand(named="__consumer_offsets")
        why = "SELECT DISTINCT cause, reason FROM outbox_parked WHERE cause IS NOT NULL"
        [(cause, reason)] = innocents.outbox.query(why)
        assert cause == "not_authorized"
        assert "topic __consumer_offsets: Broker: Topic authorization failed" in reason


@pytest.mark.parametrize("mode", ["single"])
def test_the_table_refuses_what_nobody_can_publish(innocents: Innocents) -> None:
    for values in ("ARRAY[['a']], ARRAY['a'], 1", "ARRAY['a'], ARRAY[['a']], 1", f"ARRAY['a'], ARRAY['a'], {-(2**63)}"):
        columns = "kafka_topic, kafka_key, kafka_header_keys, kafka_header_values, id"
        statement = f"INSERT INTO outbox ({columns}) VALUES ('t', 'k', {values})"
        with pytest.raises(psycopg.errors.CheckViolation):
            innocents.outbox.query(statement)


@pytest.mark.parametrize("mode", ["single"])
def test_an_id_that_a_writer_chose_can_be_published_and_neither_halts_nor_exhausts_anything(
    innocents: Innocents,
) -> None:
    greatest = f"{INTO}, id) VALUES ({{topic}}, 'hostile', 'v', {2**63 - 1})"
    with innocents.harvested() as process:
        innocents.around(greatest)
        innocents.stand(named="was chosen by its writer")
        innocents.command("parked", "retry", "--all")
        parked = "SELECT count(*) FROM outbox_parked"
        innocents.wait_until(lambda: innocents.outbox.query(parked) == [(0,)], "it is not published")
        innocents.around("SELECT 1")
        assert process.failures == []
    with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
        connection.execute(sql.SQL(greatest).format(topic=sql.Literal(innocents.outbox.topic)))  # type: ignore[arg-type]
        connection.execute("SELECT setval('outbox_id_seq', 1)")  # something to adopt
    innocents.command("adopt", "--reason", "a test", "--yes")
    with innocents.harvested():
        innocents.around("SELECT 1")
        innocents.stand(named="was chosen by its writer")
