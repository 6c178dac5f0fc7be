"""The pages of an outbox with four shards, led by hand, and of one that is halted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from playwright.sync_api import expect
from support.browser import Visit
from support.parking import park_by_hand
from support.slots import key_of

from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import make_indexes

NAME = OutboxName.parse("sharded")
ONE = "one?outbox=postgres_default:sharded"
PARKED = "parked?outbox=postgres_default:sharded"
TOPIC = "no.such"
COMMAND = "airflow outbox adopt --reason '…' --postgres-conn-id postgres_default --outbox sharded"
LEAD = """
UPDATE sharded_shard
SET member = 'm' || shard % 2, heartbeat_at = clock_timestamp(), took_over_at = clock_timestamp(), silence = 3600,
    delivery = 'exactly_once'
"""


@pytest.fixture(scope="module")
def sharded(outboxes: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        make_indexes(connection, NAME)
        ask_layout(connection, NAME, shards=4)
        connection.execute(LEAD)
        park_by_hand(connection, *(key_of(shard, TOPIC) for shard in (1, 3)), topic=TOPIC, outbox="sharded")
        connection.execute(
            "UPDATE sharded_shard SET last_error = 'the topic is full. Empty it', last_error_at = now() WHERE shard = 2"
        )
        yield connection


def test_each_shard_has_its_line_and_a_parked_record_its_shard(
    visit: Callable[..., Visit], sharded: psycopg.Connection[Any]
) -> None:
    visitor = visit("admin")
    frame = visitor.open_framed(ONE)
    expect(frame.locator(".verdict .badge")).to_have_text("STALLED")
    expect(frame.locator(".verdict")).to_contain_text("Shard 2: m0: the topic is full")
    lines = frame.locator("[data-region=leaders] tbody tr")
    expect(lines).to_have_count(4)
    for number, (state, member) in enumerate(
        [("HEALTHY", "m0"), ("LAGGING", "m1"), ("STALLED", "m0"), ("LAGGING", "m1")]
    ):
        expect(lines.nth(number).locator(".badge")).to_have_text(state)
        expect(lines.nth(number)).to_contain_text(member)
    leaders = frame.locator("[data-region=leaders]")
    expect(leaders).to_contain_text("4 shards, layout 2")
    ask_layout(sharded, NAME, shards=2)
    visitor.go(frame, ONE)
    expect(leaders).to_contain_text("4 shards; 2 are asked for, and the leader of shard 0 sees to that.")
    ask_layout(sharded, NAME, shards=None)
    visitor.go(frame, PARKED)
    expect(frame.locator("td[data-label=Shard]")).to_have_text(["1", "3"])
    frame.locator("tbody a").last.click()
    expect(frame.locator("dl.facts div", has=frame.get_by_text("Shard", exact=True))).to_contain_text("3")
    assert visitor.problems == []


def test_a_halt_is_explained_without_a_button(visit: Callable[..., Visit], sharded: psycopg.Connection[Any]) -> None:
    sharded.execute("UPDATE sharded_state SET halted = 'a restored backup'")
    frame = visit("admin").open_framed(ONE)
    verdict = frame.locator(".verdict")
    expect(verdict.locator(".badge")).to_have_text("HALTED")
    for words in ("a restored backup", "No record is lost meanwhile", "If it is a copy", COMMAND):
        expect(verdict).to_contain_text(words)
    expect(verdict.locator("[data-ask]")).to_have_count(0)
