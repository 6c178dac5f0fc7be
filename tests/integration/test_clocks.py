"""A clock that is set stops nothing for as long as it was set by."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import uuid4

import pytest
from support.leading import Leader

from airflow_outbox.cli import status_words
from airflow_outbox.harvest.kafka.oauth import FetchedTokens, Token, TokenError
from airflow_outbox.operate.adopt_copy import _execute
from airflow_outbox.operate.status import read_status

HOUR = 3600.0


class Clocks:
    """Both clocks of a machine, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_by = self.passed = 0.0
        wall, monotonic = time.time(), time.monotonic()
        monkeypatch.setattr(time, "time", lambda: wall + self.passed + self.set_by)
        monkeypatch.setattr(time, "monotonic", lambda: monotonic + self.passed)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_a_token_is_replaced_in_time_although_the_clock_was_set_back(clocks: Clocks) -> None:
    tokens = FetchedTokens(lambda _: (str(clocks.passed), time.time() + 600))
    assert tokens("")[0] == "0.0"
    clocks.set_by = -HOUR
    clocks.passed = 300
    assert tokens("")[0] == "0.0"
    clocks.passed = 599
    assert tokens("")[0] == "599"


def test_a_token_of_a_server_whose_clock_is_right_says_which_clock_finds_it_expired(clocks: Clocks) -> None:
    token = Token.of(("text", time.time() + 600))
    assert token.expires_in == pytest.approx(600)
    clocks.set_by = HOUR
    assert token.expires_in < 0
    with pytest.raises(TokenError, match="expired 3000 s ago by this machine's clock"):
        Token.of(("text", token.expires_at))


def test_a_heartbeat_of_the_future_is_of_nobody_who_leads(database: str) -> None:
    leader = Leader(database)
    try:
        table = leader.table
        assert _execute(table, "running_harvester", silence=3600).fetchone()
        leader.connection.execute("UPDATE outbox_shard SET backends = '[]'")
        assert _execute(table, "running_harvester", silence=3600).fetchone()
        leader.connection.execute("UPDATE outbox_shard SET heartbeat_at = heartbeat_at + interval '1 hour'")
        assert _execute(table, "running_harvester", silence=3600).fetchone() is None
        [shard] = read_status(leader.connection, table.name).shards
        assert status_words.leader(shard, 6) == "nobody; test was last heard from before Postgres' clock was set back"
        assert status_words.leader(replace(shard, silent_for=1.0, view=uuid4()), 6) == "test"
    finally:
        leader.close()
