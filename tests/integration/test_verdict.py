"""The verdict from a real Postgres: what is read for it, by whom, and how little of the tables that takes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.harvesting import CALM
from support.leading import NAME, Leader, logged_in

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.status import ask_pause, read_status
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.postgres import verdict_facts
from airflow_outbox.postgres.schema import ROLES
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.verdict_facts import read_facts, verdict_statements
from airflow_outbox.values.judging import judge
from airflow_outbox.values.verdict import Backlog, State, Thresholds, TroubleKind, Verdict

BOUNDS = Thresholds(lagging_after=60, stalled_after=600, silence=600)


def judged(leader: Leader) -> Verdict:
    return judge(read_facts(leader.own, NAME), BOUNDS)


def last_error(leader: Leader) -> str | None:
    return read_status(leader.own, NAME, thresholds=BOUNDS).shards[0].last_error


def tell(leader: Leader, member: str, error: str = "can't reach Kafka. Start it") -> None:
    values = {"member": member, "kind": TroubleKind.KAFKA.value, "error": error, "shard": None}
    Statements(leader.own, leader.table.name).execute("trouble.tell", values)


def test_what_waits_is_counted_up_to_a_bound(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_facts, "MOST_COUNTED", 5)
    assert read_facts(leader.own, NAME).backlog == Backlog(0)
    leader.stash(5)
    exact = read_facts(leader.own, NAME).backlog
    assert exact is not None
    assert (exact.records, exact.is_exact) == (5, True)
    assert 0 <= (exact.oldest_age or -1) < 60
    leader.stash(3)
    more = read_facts(leader.own, NAME).backlog
    assert str(more) == "more than 5"
    status = read_status(leader.own, NAME)
    assert (status.backlog, status.backlog_is_exact) == (5, False)


def test_the_oldest_decides_and_times_that_say_nothing_are_left_out(leader: Leader) -> None:
    leader.stash(3)
    leader.connection.execute("UPDATE outbox SET create_time = 'infinity' WHERE id = 1")
    leader.connection.execute("UPDATE outbox SET create_time = now() - interval '90 s' WHERE id = 2")
    leader.connection.execute("UPDATE outbox SET create_time = now() + interval '1 h' WHERE id = 3")
    found = judged(leader)
    assert found.state is State.LAGGING
    told = re.search(r"3 records wait, the oldest for (\d+)\.\d s", found.cause)
    assert told, found.cause
    assert 90 <= int(told[1]) < 120
    leader.connection.execute("UPDATE outbox SET create_time = 'infinity'")
    assert judged(leader).state is State.HEALTHY
    leader.connection.execute("UPDATE outbox SET create_time = '4713-01-01 BC' WHERE id = 1")
    found = judged(leader)
    assert found.state is State.LAGGING
    assert found.since is not None
    assert found.since.year > 1900


@pytest.mark.parametrize(
    "history",
    [
        "UPDATE outbox_shard SET watermark = '999999999:999999999:'",  # of an older cluster, whose dump this is
        "UPDATE outbox_shard SET watermark = pg_current_snapshot(); UPDATE outbox_state SET timeline = timeline + 1",
    ],
    ids=["of the future", "of another history"],
)
def test_a_watermark_that_does_not_hold_here_hides_no_record(leader: Leader, history: str) -> None:
    leader.beat()
    leader.stash(3)
    leader.connection.execute(history.encode())
    assert not leader.table.is_empty()
    assert str(read_facts(leader.own, leader.table.name).backlog) == "3"


def explained(leader: Leader, statement: str, *options: str) -> Any:
    """The plan of a statement that is run as for the verdict."""
    statements = verdict_statements(leader.own, leader.table.name, bytes_keys=False)
    with leader.own.transaction():
        statements.execute("verdict.brief", {"milliseconds": 60_000})
        explain = f"EXPLAIN ({', '.join([*options, 'FORMAT JSON'])}) ".encode()
        query = explain + statements.composed(f"verdict.{statement}").as_bytes(leader.own)
        values = {"most": 100_000, "most_parked": 1_000, "shard": 0}
        [(plans,)] = leader.own.execute(query, values).fetchall()  # type: ignore[call-overload]
    return plans[0]["Plan"]


@pytest.mark.parametrize("statement", ["backlog", "backlog_after_watermark", "parked"])
def test_no_table_that_grows_is_scanned(leader: Leader, statement: str) -> None:
    leader.stash(20_000)
    leader.beat()
    leader.stash(5_000)
    leader.connection.execute("ANALYZE outbox")
    plan = json.dumps(explained(leader, statement), indent=1)
    scans = re.findall(r'"Node Type": "(Seq Scan|Bitmap \w+ Scan)".*?"Relation Name": "(\w+)"', plan, re.DOTALL)
    assert {table for _, table in scans} <= {"outbox_shard", "outbox_state"}, plan


def test_dead_rows_behind_the_watermark_are_not_looked_at(leader: Leader, database: str) -> None:
    with psycopg.connect(database) as old:  # keeps them
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        leader.stash(20_000)
        leader.connection.execute("DELETE FROM outbox")
        leader.beat()
        leader.stash(2)
        plan = explained(leader, "backlog_after_watermark", "ANALYZE", "BUFFERS")
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100
        assert str(read_facts(leader.own, NAME).backlog) == "2"


def test_counting_that_takes_too_long_is_given_up(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = verdict_facts._waiting

    def hurried(*given: Any, **more: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(verdict_facts, "_BRIEFLY", 50)
            return counted(*given, **more)

    monkeypatch.setattr(verdict_facts, "_waiting", hurried)
    with leader.connection.transaction():
        leader.connection.execute("LOCK TABLE outbox")
        facts = read_facts(leader.own, NAME)
    assert facts.backlog is None
    found = judge(facts, BOUNDS)
    assert (found.state, "could not be counted" in found.cause) == (State.HEALTHY, True)


def test_a_pause_says_since_when(leader: Leader) -> None:
    begun = datetime.now(UTC)
    ask_pause(leader.own, NAME, paused=True)
    first = judged(leader)
    assert first.state is State.PAUSED
    assert first.since is not None
    assert begun - timedelta(seconds=1) < first.since <= datetime.now(UTC)
    ask_pause(leader.own, NAME, paused=True)
    assert judged(leader).since == first.since
    ask_pause(leader.own, NAME, paused=False)
    assert judged(leader).state is State.HEALTHY


def test_an_error_stands_until_something_is_published_or_nothing_is_in_flight(leader: Leader) -> None:
    def beat(*, published: int, in_flight: int) -> State:
        leader.table.heartbeat(leader.view, published=published, in_flight=in_flight, rate=0)
        return judged(leader).state

    for published, in_flight in ((1, 7), (0, 0)):
        leader.table.note_error(leader.view, "the disk is full. Make room")
        found = judged(leader)
        assert (found.state, found.remedy) == (State.STALLED, "Make room")
        leader.table.note_error(leader.view, "the disk is full. Make room")
        assert judged(leader).since == found.since
        assert beat(published=0, in_flight=7) is State.STALLED
        assert last_error(leader) == "test: the disk is full. Make room"
        assert beat(published=published, in_flight=in_flight) is State.HEALTHY
        assert last_error(leader) is None


def test_a_halt_is_the_verdict_whoever_leads(leader: Leader) -> None:
    leader.table.halt(leader.view, "the ledger has another view")
    leader.table.note_error(leader.view, "the ledger has another view. Nothing was purged. Run `adopt`")
    leader.stash(1)
    found = judged(leader)
    assert found.state is State.HALTED
    assert found.since is not None
    assert "the ledger has another view" in found.cause


def test_who_leaves_in_order_is_no_leader_and_has_no_rate(leader: Leader) -> None:
    leader.table.heartbeat(leader.view, published=10, in_flight=4, rate=10.0)
    leader.table.leave(uuid4())
    assert judged(leader).state is State.HEALTHY
    leader.table.leave(leader.view)
    assert judged(leader).state is State.NO_LEADER
    [shard] = read_status(leader.own, NAME).shards
    assert (shard.member, shard.rate, shard.in_flight, shard.published) == (None, 0, 0, 10)


def test_a_members_trouble_is_a_note_while_another_leads_and_the_cause_when_nobody_does(leader: Leader) -> None:
    tell(leader, "other:2")
    found = judged(leader)
    assert (found.state, found.notes) == (State.HEALTHY, ("other:2: can't reach Kafka. Start it",))
    leader.table.leave(leader.view)
    found = judged(leader)
    assert (found.state, found.remedy) == (State.STALLED, "Start it")
    assert last_error(leader) == "other:2: can't reach Kafka. Start it"
    since = found.since
    tell(leader, "other:2", "Kafka refuses the login. Correct it")
    found = judged(leader)
    assert (found.remedy, found.since) == ("Correct it", since)
    leader.connection.execute("UPDATE outbox_trouble SET told_at = now() - interval '1 min'")
    found = judged(leader)
    assert found.state is State.NO_LEADER  # it has gone
    tell(leader, "other:2")
    assert judged(leader).since != since
    Statements(leader.own, leader.table.name).execute("trouble.over", {"member": "other:2"})
    assert judged(leader).notes == ()


def test_parked_records_are_a_reason_to_look(leader: Leader) -> None:
    leader.park(leader.stash(2), 1, "topic x does not exist")
    found = judged(leader)
    assert found.state is State.LAGGING
    assert "(1 refused): topic x does not exist" in found.cause
    assert "parked list" in found.remedy
    leader.discard()
    assert judged(leader).state is State.HEALTHY


def test_every_role_that_looks_gets_it_and_no_other(leader: Leader, database: str) -> None:
    states: dict[str, State] = {}
    for role in (*ROLES, None):
        with logged_in(database, leader.connection, role) as data_source:
            settings = {"data_source": data_source, "kafka": {"bootstrap.servers": "nowhere:1"}, "limits": CALM}
            leader.beat()
            found = read_verdict(HarvestConfig.validated(settings, source="test"))
            states[str(role)] = found.state
            assert found.state is State.HEALTHY or "permission denied" in found.cause, found
    healthy = {role for role, state in states.items() if state is State.HEALTHY}
    assert healthy == {"harvest", "look", "operate"}
    assert set(states.values()) == {State.HEALTHY, State.UNKNOWN}


def test_a_table_of_goharvest_has_a_verdict_too(database: str) -> None:
    leader = Leader(database, delivery="at_least_once")
    try:
        leader.connection.execute("UPDATE outbox_state SET timeline = timeline + 1")  # no history counts there
        leader.stash(3)
        leader.connection.execute("DROP TRIGGER loaded ON outbox")
        leader.connection.execute("ALTER TABLE outbox DROP COLUMN transaction_id")
        facts = read_facts(leader.own, NAME)
        assert facts.backlog is not None
        assert facts.backlog.records == 3
        assert judge(facts, BOUNDS).state is State.HEALTHY
    finally:
        leader.close()
