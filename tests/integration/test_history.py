"""The history of the last day, in a real Postgres: what is noted, by whom, how often, and how little it takes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.harvesting import CALM, Outbox, Process, wait_until
from support.leading import NAME, Leader, logged_in

from airflow_outbox.errors import PostgresError
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.health_history import note_history, read_history
from airflow_outbox.values.health_history import HistoryPoint, ShardNote
from airflow_outbox.values.verdict import Backlog, State

MEMBER = "test"  # the leader by hand


def note(leader: Leader, state: State = State.HEALTHY, **values: Any) -> float:
    known = {"member": MEMBER, "backlog": Backlog(0), "rate": 0.0, **values}
    return note_history(leader.own, NAME, [ShardNote(state=state, **known)])


def note_ago(leader: Leader, seconds: int, state: State, **values: Any) -> None:
    """Note something, as if some tens of seconds ago."""
    note(leader, state, **values)
    leader.connection.execute(
        "UPDATE outbox_history SET noted_at = noted_at - make_interval(secs => %(seconds)s),"
        " slot = mod(slot - %(seconds)s / 10 + 8640, 8640) WHERE noted_at > now() - interval '300 s'",
        {"seconds": seconds},
    )


def tens() -> int:
    """The ten seconds that it is now."""
    return int(datetime.now(UTC).timestamp() // 10)


def within_ten_seconds(leader: Leader, act: Callable[[], object]) -> None:
    """Do something that begins and ends within the same ten seconds, however busy the machine is."""
    while True:
        leader.connection.execute("TRUNCATE outbox_history")
        begun = tens()
        act()
        if tens() == begun:
            return


def age(leader: Leader, by: timedelta) -> None:
    """Let all rows be older."""
    leader.connection.execute("UPDATE outbox_history SET noted_at = noted_at - %s", [by])


def test_what_is_noted_is_read(leader: Leader) -> None:
    before = tens()
    note(leader, State.LAGGING, backlog=Backlog(7, False, 61.5), rate=12.5, latency_p50=0.01, latency_p99=0.2)
    after = tens()
    [point] = read_history(leader.own, NAME)
    assert point == HistoryPoint(point.noted_at, State.LAGGING, Backlog(7, False, 61.5), 12.5, 0.01, 0.2)
    assert before <= point.noted_at.timestamp() / 10 <= after
    assert point.noted_at.timestamp() % 10 == 0


def test_a_backlog_that_could_not_be_counted_is_unknown(leader: Leader) -> None:
    note(leader, backlog=None)
    [point] = read_history(leader.own, NAME)
    assert (point.backlog, point.latency_p50) == (None, None)


def test_ten_seconds_have_one_row_and_the_next_note_comes_amid_the_next_ten(leader: Leader) -> None:
    found: list[tuple[float, float, float]] = []

    def both() -> None:
        found.clear()
        for state in (State.LAGGING, State.HEALTHY):
            before = datetime.now(UTC).timestamp()
            wait = note(leader, state)
            found.append((before, wait, datetime.now(UTC).timestamp()))

    within_ten_seconds(leader, both)
    for before, wait, after in found:
        assert before + wait - 0.01 <= 10 * (before // 10) + 15 <= after + wait + 0.01
    rows = leader.connection.execute("SELECT state FROM outbox_history ORDER BY noted_at").fetchall()
    assert rows == [("lagging",)]


def test_who_does_not_lead_notes_nothing(leader: Leader) -> None:
    note(leader, member="another")
    leader.table.leave(leader.view)
    note(leader)
    assert read_history(leader.own, NAME) == []


def test_after_a_day_the_same_row_is_written_again(leader: Leader) -> None:
    def noted_again() -> None:
        note(leader, State.STALLED)
        age(leader, timedelta(days=1))
        assert read_history(leader.own, NAME) == []
        note(leader)

    within_ten_seconds(leader, noted_again)
    assert [point.state for point in read_history(leader.own, NAME)] == [State.HEALTHY]
    assert leader.connection.execute("SELECT count(*) FROM outbox_history").fetchall() == [(1,)]


def test_a_clock_that_was_set_back_leaves_no_points_in_the_future(leader: Leader) -> None:
    note(leader, State.STALLED)
    age(leader, timedelta(days=-1))
    assert read_history(leader.own, NAME) == []
    note(leader)
    assert [point.state for point in read_history(leader.own, NAME)] == [State.HEALTHY]


def test_a_step_tells_the_worst_and_a_gap_stays_one(leader: Leader) -> None:
    note_ago(leader, 700, State.HEALTHY, backlog=Backlog(5), rate=100.0, latency_p99=0.1)
    note_ago(leader, 690, State.STALLED, backlog=Backlog(100_000, False, 70.0), rate=0.0, latency_p99=0.3)
    note_ago(leader, 680, State.LAGGING, backlog=None, rate=50.0)
    note_ago(leader, 20, State.HEALTHY)
    points = read_history(leader.own, NAME, seconds=3600, step=60)
    assert len(points) in (2, 3)  # the first three may be of two minutes
    if len(points) == 2:
        worst = HistoryPoint(points[0].noted_at, State.STALLED, Backlog(100_000, False, 70.0), 50.0, None, 0.3)
        assert points[0] == worst
    assert points[-1].noted_at - points[-2].noted_at > timedelta(minutes=8)
    assert [point.state for point in read_history(leader.own, NAME, seconds=60)] == [State.HEALTHY]


_DAY = """
DO $$
BEGIN
    FOR number IN 0..8639 LOOP
        INSERT INTO outbox_history AS known (shard, slot, noted_at, state, backlog, backlog_is_exact, oldest_age, rate,
                                             latency_p50, latency_p99)
        VALUES (0, number, clock_timestamp(), 'healthy', 1, true, 1, 1, 1, 1)
        ON CONFLICT (shard, slot) DO UPDATE SET noted_at = EXCLUDED.noted_at, state = EXCLUDED.state;
        COMMIT;
    END LOOP;
END $$
"""


def test_the_table_does_not_grow_after_a_day(leader: Leader) -> None:
    """A day may leave it larger, where something in the database, such as an analysis, still sees the old rows."""
    leader.connection.execute("ALTER TABLE outbox_history SET (autovacuum_enabled = off)")
    sizes = [0]
    for _ in range(10):
        leader.connection.execute(_DAY)
        [(size,)] = leader.connection.execute("SELECT pg_total_relation_size('outbox_history')").fetchall()
        sizes.append(size)
        assert sizes[1] < 2_000_000
        if size < 1.02 * sizes[-2]:
            return
    pytest.fail(f"it grows each day: {sizes}")


@pytest.mark.parametrize(
    ("role", "may_note", "may_read"), [("harvest", True, True), ("look", False, True), ("stash", False, False)]
)
def test_roles(leader: Leader, database: str, role: Any, may_note: bool, may_read: bool) -> None:
    one = ShardNote(member=MEMBER, state=State.HEALTHY, backlog=None, rate=0)
    with logged_in(database, leader.connection, role) as data_source, connect(data_source, purpose="test") as own:
        for may, use in [
            (
                may_note,
                lambda: note_history(own, NAME, [one]),
            ),
            (may_read, lambda: read_history(own, NAME)),
        ]:
            if may:
                use()
            else:
                with pytest.raises(PostgresError, match="outbox_history"):
                    use()


def test_a_leader_notes_and_a_member_that_stands_by_does_not(outbox: Outbox, start: Any) -> None:
    leader: Process = start(child=True, limits=CALM)
    leader.wait_for("view")
    other: Process = start(child=True, limits=CALM)
    rows: list[tuple[Any, ...]] = []

    stashed = 0

    def noted() -> bool:
        nonlocal stashed
        outbox.stash(1)
        stashed += 1
        rows[:] = outbox.query("SELECT state, backlog, rate, latency_p50 FROM outbox_history WHERE rate > 0")
        return bool(rows)

    wait_until(
        noted, doing=lambda: f"waiting for a note: {leader.events} {outbox.query('SELECT * FROM outbox_history')}"
    )
    state, backlog, rate, latency = rows[0]
    assert state == "healthy"
    assert backlog < stashed
    assert 0 < rate <= 10 * stashed
    assert 0 < latency < 60
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-outbox history'"
        " AND datname = current_database()"
    )
    wait_until(lambda: outbox.query(sessions) == [(1,)])
    other.end()


def test_without_the_table_harvesting_goes_on_and_says_so(outbox: Outbox, start: Any) -> None:
    outbox.query("ALTER TABLE outbox_history RENAME TO elsewhere")
    harvester: Process = start(child=True, limits=CALM)
    harvester.wait_for("view")
    outbox.stash(10)
    wait_until(lambda: any("history" in str(event.get("error")) for event in harvester.events))
    outbox.stash(10, start=10)
    wait_until(lambda: outbox.left() == 0)
    assert harvester.own_views() <= 0
    assert not {event["event"] for event in harvester.events} & {"fenced", "resigned"}


def test_a_locked_history_holds_nobody_up(outbox: Outbox, harvester: Process) -> None:
    with psycopg.connect(outbox.database) as locking:
        locking.execute("LOCK TABLE outbox_history")
        harvester.wait_for("view")
        wait_until(
            lambda: outbox.query(
                "SELECT FROM pg_stat_activity WHERE application_name = 'airflow-outbox history'"
                " AND datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        outbox.stash(10)
        wait_until(lambda: outbox.left() == 0)
        locking.rollback()
    wait_until(lambda: outbox.query("SELECT FROM outbox_history"))
