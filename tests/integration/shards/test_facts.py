"""Four shards in Postgres, led by hand: each has its own backlog, parked records, verdict and past, wherever shown."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from support.leading import NAME
from support.parking import park_by_hand
from support.slots import key_of, slot_of

from airflow_outbox.cli import main
from airflow_outbox.operate.details import read_details
from airflow_outbox.operate.overview import find_shape, read_overview
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.operate.status import read_status
from airflow_outbox.postgres import verdict_facts
from airflow_outbox.postgres.health_history import note_history, read_history
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.slots import make_indexes
from airflow_outbox.postgres.verdict_facts import read_facts, verdict_statements
from airflow_outbox.values.health_history import ShardNote
from airflow_outbox.values.judging import judge
from airflow_outbox.values.verdict import Backlog, State, Thresholds

SHARDS = 4
PLACED = OutboxName.parse("public.outbox")
BOUNDS = Thresholds(silence=3600.0)
"""A leader by hand says something only once."""
LEAD = """
UPDATE outbox_shard
SET member = 'm' || shard % 2, heartbeat_at = clock_timestamp(), took_over_at = clock_timestamp(),
    published_at = clock_timestamp(), rate = shard + 1, published = 10 * shard, delivery = 'exactly_once',
    silence = 3600
"""
STASH = """
INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't' || number % 3, ('k' || number % 50)::{}
FROM generate_series(1, 600) AS number
"""
AT = """
INSERT INTO outbox_history
SELECT shard, mod(tens, 8640), to_timestamp(10 * tens), 'healthy', 0, true, 0, 10 * shard, 0, 0
FROM generate_series(0, 3) AS shard, (SELECT floor(extract(epoch FROM now()) / 10)::bigint - %(ago)s AS tens) AS time
ON CONFLICT DO NOTHING
"""


@pytest.fixture
def four(connection: psycopg.Connection[Any], request: pytest.FixtureRequest) -> psycopg.Connection[Any]:
    init_outbox(connection, NAME, key_type=getattr(request, "param", "varchar(100)"))
    make_indexes(connection, NAME)
    ask_layout(connection, NAME, shards=SHARDS)
    connection.execute(LEAD)
    return connection


def stashed(connection: psycopg.Connection[Any], key_type: str = "text") -> dict[int, int]:
    """Stash 600 records. Return how many each shard has."""
    connection.execute(STASH.format(key_type).encode())
    return Counter(slot_of(f"t{number % 3}", f"k{number % 50}") % SHARDS for number in range(1, 601))


@pytest.mark.parametrize(("four", "key_type"), [("varchar(100)", "text"), ("bytea", "bytea")], indirect=["four"])
def test_each_shard_has_its_own_backlog_and_parked_records(four: psycopg.Connection[Any], key_type: str) -> None:
    expected = stashed(four, key_type)
    keys = [key_of(shard, "no.such") for shard in (1, 1, 3)]
    park_by_hand(four, *(key.encode() if key_type == "bytea" else key for key in keys), topic="no.such")
    late = [number for number in range(1, 601) if slot_of(f"t{number % 3}", f"k{number % 50}") % SHARDS == 2]
    four.execute("UPDATE outbox SET create_time = now() - interval '90 s' WHERE id = ANY(%s)", [late])
    status, overview = read_status(four, NAME, thresholds=BOUNDS), read_overview(four, find_shape(four, PLACED))
    details = read_details(four, find_shape(four, PLACED))
    for shown in (status.shards, details.leaders):
        assert {shard.shard: shard.backlog.records for shard in shown if shard.backlog} == expected
        assert [shard.refused for shard in shown] == [0, 2, 0, 1]
        assert [shard.member for shard in shown] == ["m0", "m1", "m0", "m1"]
        found = {shard.shard: shard.verdict.state for shard in shown if shard.verdict}
        assert found == {shard: State.LAGGING if shard else State.HEALTHY for shard in range(SHARDS)}
    requests, everything = ParkedRequests(four, NAME), Choice(everything=True)
    for found_parked in (requests.listed(everything), requests.whole(everything), requests.page(everything)):
        assert [row["shard"] for row in found_parked] == [1, 1, 3]
    assert status.backlog == 600
    assert overview.parked == 3
    for verdict in (status.verdict, overview.verdict, details.overview.verdict):
        assert verdict.state is State.LAGGING
        # The age depends on when it was read: a busy machine takes its time.
        assert re.match(rf"shard 2: {expected[2]} records wait, the oldest for (9\d|1[01]\d|\d min)\b", verdict.cause)
    four.execute("UPDATE outbox_shard SET watermark = pg_current_snapshot() WHERE shard <> 2")
    [*others, of_two, _] = read_facts(four, NAME).shards
    assert [each.backlog for each in others] == [Backlog(0), Backlog(0)]
    assert of_two.backlog is not None
    assert of_two.backlog.records == expected[2]


def test_a_list_of_parked_records_has_their_shards(
    four: psycopg.Connection[Any], database: str, tmp_path: Path
) -> None:
    park_by_hand(four, key_of(2, "no.such"), topic="no.such")
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump({"data_source": database, "kafka": {"bootstrap.servers": "127.0.0.1:9"}}))
    listed = CliRunner().invoke(main, ["parked", "list"], env={"AIRFLOW_OUTBOX_FILE": str(file)}).output
    [heading] = [line for line in listed.splitlines() if "topic" in line]
    [row] = [line for line in listed.splitlines() if "no.such" in line]
    shard = [cell.strip() for cell in re.split("[│┃]", heading)].index("shard")
    assert row.split("│")[shard].strip() == "2"


def test_what_waits_is_counted_up_to_each_shards_part(
    four: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stashed(four)
    monkeypatch.setattr(verdict_facts, "MOST_COUNTED", SHARDS * (expected[0] - 1))
    facts = read_facts(four, NAME)
    counted = {shard.shard: str(shard.backlog) for shard in facts.shards}
    bound = expected[0] - 1
    assert counted == {
        shard: f"more than {bound}" if count > bound else str(count) for shard, count in expected.items()
    }
    assert facts.backlog is not None
    assert not facts.backlog.is_exact


def test_one_shards_error_or_silence_is_the_outboxs_verdict(four: psycopg.Connection[Any]) -> None:
    def verdict() -> tuple[State, str]:
        found = judge(read_facts(four, NAME), BOUNDS)
        return found.state, found.cause

    assert verdict() == (State.HEALTHY, "2 members lead 4 shards, and nothing waits")
    four.execute(
        "UPDATE outbox_shard SET last_error = 'full. Empty it', last_error_at = clock_timestamp() WHERE shard = 1"
    )
    assert verdict() == (State.STALLED, "shard 1: m1: full")
    errors = [shard.last_error for shard in read_status(four, NAME).shards]
    assert errors == [None, "m1: full. Empty it", None, None]
    four.execute("UPDATE outbox_shard SET last_error = NULL, last_error_at = NULL")
    four.execute("UPDATE outbox_shard SET heartbeat_at = heartbeat_at - interval '2 h' WHERE shard = 3")
    state, cause = verdict()
    assert (state, cause[:8]) == (State.NO_LEADER, "shard 3:")
    four.execute("UPDATE outbox_state SET halted = 'a restored backup'")
    assert verdict()[0] is State.HALTED
    assert {judge(each, BOUNDS).state for each in read_facts(four, NAME).shards} == {State.HALTED}


def test_the_indexes_on_slots_lead_to_what_waits(four: psycopg.Connection[Any]) -> None:
    stashed(four)
    statements = verdict_statements(four, NAME, bytes_keys=False)
    with four.transaction():
        statements.execute("verdict.brief", {"milliseconds": 60_000})
        query = b"EXPLAIN (ANALYZE, FORMAT JSON) " + statements.composed("verdict.backlog_after_watermark").as_bytes(
            four
        )
        [(plans,)] = four.execute(query, {"most": 1_000}).fetchall()
    ran = [node for node in nodes(plans[0]["Plan"]) if node["Actual Loops"] and node.get("Relation Name") == "outbox"]
    assert {node.get("Index Name") for node in ran} == {"outbox_slot_transaction_id"}, json.dumps(ran, indent=1)


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for below in plan.get("Plans", []) for node in nodes(below))]


def test_each_shard_has_its_own_past(four: psycopg.Connection[Any]) -> None:
    begun = datetime.now(UTC)

    def note(shard: int, state: State, waiting: int, member: str) -> ShardNote:
        return ShardNote(shard=shard, member=member, state=state, backlog=Backlog(waiting), rate=10.0 * shard)

    notes = [note(shard, State.HEALTHY, shard, f"m{shard % 2}") for shard in range(3)]
    note_history(four, NAME, [*notes, note(3, State.STALLED, 9, "another")])
    assert len(read_history(four, NAME, step=60)) in (1, 2)
    [whole] = read_history(four, NAME)
    assert (whole.state, whole.backlog, whole.rate) == (State.HEALTHY, Backlog(3), 30.0)
    note_history(four, NAME, [note(3, State.STALLED, 9, "m1")])
    worst = max(read_history(four, NAME), key=lambda point: point.noted_at)
    assert worst.state is State.STALLED
    [last] = read_history(four, NAME, shard=3)
    assert (last.state, last.backlog, last.rate) == (State.STALLED, Backlog(9), 30.0)
    [second] = read_history(four, NAME, shard=1)
    assert (second.state, second.rate) == (State.HEALTHY, 10.0)
    assert begun - timedelta(minutes=1) < second.noted_at <= datetime.now(UTC)  # each note stands for some seconds
    # The small chart of the last hour adds the shards, those of an earlier layout, too.
    four.execute("UPDATE outbox_shard SET slots = '{}' WHERE shard = 3")
    for ago in (1, 0, -1, -2, -3, -4, -5, -6):  # the time of its newest number, and those that come next
        four.execute(AT, {"ago": ago})
    assert read_overview(four, find_shape(four, PLACED)).rates[-1] == 60.0
