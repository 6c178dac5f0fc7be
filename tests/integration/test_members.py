"""Operators see which processes harvest an outbox, whether they lead or stand by, on real servers."""

from __future__ import annotations

import signal
from contextlib import closing

import pytest
from support.harvesting import CHILD, Outbox, Process, make_outbox, wait_until

from airflow_outbox import __version__
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.operate.status import MemberStatus, read_status
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")


def members(outbox: Outbox) -> dict[int, MemberStatus]:
    """The members that operators see, by the id of their process."""
    with closing(connect(outbox.database, purpose="test")) as connection:
        found = read_status(connection, OutboxName.parse(outbox.name)).members
    return {int(each.member.rpartition(":")[2]): each for each in found}


def standing(outbox: Outbox) -> dict[int, str]:
    return {pid: each.standing for pid, each in members(outbox).items()}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_member_shows_from_its_beginning_until_it_ends(outbox: Outbox, delivery: str) -> None:
    config = {**outbox.settings, "delivery": delivery}
    first, second = (Process(CHILD, first_line={"config": config}) for _ in range(2))
    try:
        found: dict[int, MemberStatus] = {}

        def are_both_there() -> bool:
            found.clear()
            found.update(members(outbox))  # one look: the lead may still go from one to the other
            return sorted(each.standing for each in found.values()) == ["leads", "stands by"]

        wait_until(are_both_there)
        assert found.keys() == {each.popen.pid for each in (first, second)}
        assert {each.release for each in found.values()} == {__version__}
        [leader] = [pid for pid, each in found.items() if each.standing == "leads"]
        assert found[leader].shards == [0]
        ends, stays = (first, second) if first.popen.pid == leader else (second, first)
        ends.popen.send_signal(signal.SIGTERM)
        ends.ends()
        wait_until(lambda: standing(outbox) == {stays.popen.pid: "leads"})
    finally:
        first.end()
        second.end()


def test_a_member_that_says_nothing_is_silent_and_gone_an_hour_later(outbox: Outbox) -> None:
    outbox.query(
        "INSERT INTO outbox_member (member, release, started_at, told_at) VALUES"
        " ('a:1', '0.1.0', now() - interval '2 hours', clock_timestamp() - interval '16 s'),"
        " ('b:2', '0.1.0', now() - interval '2 hours', clock_timestamp() - interval '61 minutes'),"
        " ('c:3', '0.1.0', now() - interval '2 hours', clock_timestamp() + interval '10 s')"
    )
    assert [*standing(outbox).items()] == [(3, "stands by"), (1, "silent"), (2, "silent")]
    member = Process(CHILD, first_line={"config": outbox.settings})
    try:
        wait_until(lambda: next(iter(standing(outbox).items())) == (member.popen.pid, "leads"))
        assert standing(outbox).keys() == {member.popen.pid, 3, 1}
    finally:
        member.end()


def test_a_member_that_may_not_say_so_harvests(outbox: Outbox) -> None:
    outbox.query("ALTER TABLE outbox_member RENAME release TO something_else")
    outbox.stash(10)
    member = Process(CHILD, first_line={"config": outbox.settings})
    try:
        wait_until(lambda: outbox.left() == 0)
        wait_until(lambda: any(each["state"] == "healthy" for each in member.events if each["event"] == "verdict"))
        outbox.query("ALTER TABLE outbox_member RENAME something_else TO release")
        wait_until(lambda: standing(outbox) == {member.popen.pid: "leads"})
        member.popen.send_signal(signal.SIGTERM)
        member.ends()
        assert member.popen.returncode == 0
    finally:
        member.end()
