"""Hostile rows among innocent ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from hostile.innocents import Innocents


@dataclass(frozen=True, slots=True)
class Hostile:
    """A statement that writes one, and the cause that it is parked for; `named` is what `parked list` shows of it."""

    statement: str
    cause: str
    named: str


ROWS = {
    "a topic of Kafka's own, consumers'": Hostile(
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('__consumer_offsets', 'h')",
        "topic_name",
        "__consumer_offsets",
    ),
    "a topic of Kafka's own, transactions'": Hostile(
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('__transaction_state', 'h')",
        "topic_name",
        "__transaction_state",
    ),
}


UNAWARE = """
from airflow_outbox.harvest import __main__, topic_book
topic_book.is_kafkas_own = lambda topic: False
__main__.main()
"""
"""A harvester that takes every topic of a legal name for one that records may go to."""


@pytest.mark.parametrize("name", ROWS)
def test_it_is_parked_and_the_innocents_come_out(innocents: Innocents, name: str) -> None:
    hostile = ROWS[name]
    with innocents.harvested():
        innocents.around(hostile.statement)
        innocents.stand(named=hostile.named)
        assert innocents.outbox.query("SELECT cause FROM outbox_parked WHERE cause IS NOT NULL") == [(hostile.cause,)]


@pytest.mark.parametrize("mode", ["single", "atomic"])
def test_a_topic_that_only_a_transaction_is_refused_is_parked(innocents: Innocents) -> None:
    hostile = (
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('__consumer_offsets', 'h'), ('__consumer_offsets', 'i')"
    )
    with innocents.harvested(command=[sys.executable, "-c", UNAWARE]):
        innocents.around(hostile)
        innocents.stand(named="__consumer_offsets")
        [(cause, reason)] = innocents.outbox.query(
            "SELECT DISTINCT cause, reason FROM outbox_parked WHERE cause IS NOT NULL"
        )
        assert cause == "not_authorized"
        assert "topic __consumer_offsets: Broker: Topic authorization failed" in reason
