"""The facts about an outbox, a shard, and the shard on a cluster: what locks each of their rows, and which copies
follow. Against a real Postgres.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.harvesting import PATIENCE, wait_until
from support.homes import HOMES, homes, row
from support.leading import NAME, Leader, logged_in

from airflow_outbox.errors import FencedError, OutboxError, OutboxMissingError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.protocol.adoption import Adopting
from airflow_outbox.operate.adopt import _record as record_adoption
from airflow_outbox.operate.adopt_copy import make_new_outbox
from airflow_outbox.operate.check import _examine_postgres
from airflow_outbox.operate.status import ask_handover, ask_pause, read_status
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.health_history import note_history, read_history
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import SHARD, OutboxTable
from airflow_outbox.values.fence import PRIMARY, LedgerPosition
from airflow_outbox.values.health_history import ShardNote
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.verdict import State

WITNESS = LedgerPosition("topic", 7, 40, 99)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def leader(database: str) -> Iterator[Leader]:
    with closing(Leader(database)) as leader:
        yield leader


# Locks


@contextmanager
def undone(leader: Leader) -> Iterator[None]:
    """A transaction of the leader's connection, which is not committed."""
    with leader.own.transaction(force_rollback=True):
        yield


def locked(connection: psycopg.Connection[Any]) -> set[str]:
    """The tables whose rows another session has locked."""
    lists = {table: connection.execute(f"SELECT FROM {table} FOR UPDATE SKIP LOCKED".encode()) for table in HOMES}
    return {table for table, found in lists.items() if not found.fetchall()}


def _beat(leader: Leader, witness: LedgerPosition | None = None) -> object:
    return leader.table.heartbeat(
        leader.view, published=1, in_flight=0, rate=0, witness={PRIMARY: witness} if witness else {}
    )


def _operate(ask: Callable[[psycopg.Connection[Any]], object]) -> Callable[[Leader], object]:
    return lambda leader: ask(leader.own)


SHARD_ALONE = {"outbox_shard"}
LOCKS: dict[str, tuple[Callable[[Leader], object], set[str]]] = {
    "purge_published": (lambda leader: leader.purge(), SHARD_ALONE),
    "purge": (lambda leader: leader.table.marks.purge(leader.view, [1]), SHARD_ALONE),
    "reset": (lambda leader: leader.table.marks.reset(leader.view, [1]), SHARD_ALONE),
    "mark": (lambda leader: leader.table.marks.mark(leader.view, max_records=9, max_bytes=999), SHARD_ALONE),
    "park": (lambda leader: ParkedTable(leader.table).park(leader.view, {1: None}, leader.watermark()), SHARD_ALONE),
    "unpark": (lambda leader: ParkedTable(leader.table).unpark(leader.view, [1]), SHARD_ALONE),
    "release": (lambda leader: ParkedTable(leader.table).release(leader.view, max_records=1), SHARD_ALONE),
    "discard": (lambda leader: ParkedTable(leader.table).discard_requested(leader.view), SHARD_ALONE),
    "take_over": (lambda leader: leader.table.take_over(uuid4(), [], member="other"), SHARD_ALONE),
    "note_error": (lambda leader: leader.table.note_error(leader.view, "why"), SHARD_ALONE),
    "leave": (lambda leader: leader.table.leave(leader.view), SHARD_ALONE),
    "heartbeat": (lambda leader: _beat(leader), SHARD_ALONE),
    "heartbeat with a witness": (lambda leader: _beat(leader, WITNESS), {"outbox_shard", "outbox_ledger"}),
    "begin": (
        lambda leader: leader.table.begin(leader.view, delivery="exactly_once", witness=WITNESS),
        {"outbox_shard", "outbox_ledger"},
    ),
    "halt": (lambda leader: leader.table.halt(leader.view, "why"), {"outbox_shard", "outbox_state"}),
    "fence": (lambda leader: leader.table.fence(leader.view), set()),
    "require_fence": (lambda leader: leader.table.require_fence(leader.view), set()),
    "looks": (lambda leader: leader.table.looks(), set()),
    "identity": (lambda leader: leader.table.identity(), set()),
    "is_empty": (lambda leader: leader.table.is_empty(), set()),
    "status": (_operate(lambda connection: read_status(connection, NAME)), set()),
    "pause": (_operate(lambda connection: ask_pause(connection, NAME, paused=True)), {"outbox_state"}),
    "handover": (_operate(lambda connection: ask_handover(connection, NAME, shard=SHARD)), SHARD_ALONE),
}


@pytest.mark.parametrize("name", LOCKS)
def test_what_a_statement_locks(leader: Leader, connection: psycopg.Connection[Any], name: str) -> None:
    act, expected = LOCKS[name]
    leader.stash()
    with undone(leader):
        act(leader)
        assert locked(connection) == expected


FENCED = (
    "purge_published",
    "purge",
    "reset",
    "park",
    "unpark",
    "note_error",
    "leave",
    "heartbeat with a witness",
    "begin",
    "halt",
)


@pytest.mark.parametrize("name", FENCED)
def test_a_statement_goes_by_the_row_that_it_finds_once_it_has_the_lock(
    leader: Leader, connection: psycopg.Connection[Any], database: str, name: str
) -> None:
    """It begins before a take-over is committed, and changes nothing after it."""
    act, _ = LOCKS[name]
    leader.stash()
    connection.execute("UPDATE outbox SET leader_id = %s", [leader.view])
    outcome: list[BaseException | None] = []

    def attempt() -> None:
        try:
            act(leader)
            outcome.append(None)
        except FencedError as error:
            outcome.append(error)

    with closing(psycopg.connect(database)) as successor:
        successor.execute("UPDATE outbox_shard SET view = %s", [uuid4()])
        waiting = threading.Thread(target=attempt)
        waiting.start()
        own = leader.own.info.backend_pid
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: connection.execute(waits, [own]).fetchall())
        before = homes(successor)
        successor.commit()
        waiting.join(PATIENCE)
        assert homes(successor) == before
        assert successor.execute("SELECT leader_id FROM outbox").fetchall() == [(leader.view,)]
    assert len(outcome) == 1
    assert (outcome == [None]) == (name in ("note_error", "leave", "halt"))  # these tell nobody


def test_a_take_over_waits_for_nobody_who_holds_the_outboxs_row(database: str) -> None:
    """The first one would record the history there. Then the term does, when it begins."""
    with closing(psycopg.connect(database, autocommit=True)) as operator:
        init_outbox(operator, NAME)
        with closing(OutboxTable(connect(database, purpose="test"), NAME)) as table:
            view = uuid4()
            with operator.transaction():
                ask_pause(operator, NAME, paused=False)
                fence = table.take_over(view, [table.backend()], member="test")  # a lock would not be given
                assert fence.recorded == fence.present
            assert row(operator, "SELECT system_identifier FROM outbox_state") == {"system_identifier": None}
            table.begin(view, delivery="exactly_once", witness=LedgerPosition())
            assert table.fence(view).recorded == fence.present
            assert row(operator, "SELECT table_oid = 'outbox'::regclass AS same FROM outbox_state") == {"same": True}


def is_late(error: BaseException | None) -> bool:
    """Whether a lock came too late: a busy machine does that. Who waits for each other would be told so long before."""
    return error is not None and (isinstance(error, psycopg.errors.LockNotAvailable) or is_late(error.__cause__))


def test_nobody_waits_for_each_other(database: str, connection: psycopg.Connection[Any]) -> None:
    """All that locks several rows, at once. Postgres ends one of two that wait for each other."""
    init_outbox(connection, NAME)
    views: list[UUID] = [uuid4()]
    end = time.monotonic() + 3
    done: dict[str, int] = {}
    trouble: list[str] = []

    def take_over(table: OutboxTable) -> None:
        view = uuid4()
        table.take_over(view, [], member="test")
        views.append(view)

    def adopt(table: OutboxTable) -> None:
        view = uuid4()
        plan = Adopting(["different"], (), (), LedgerPosition("topic", 1, 2, 3), 0)
        with table.connection.transaction():
            table.take_over(view, [], member="adopt")
            record_adoption(table, {SHARD: view}, [plan], reason="a test")
        views.append(view)

    acts: dict[str, Callable[[OutboxTable], object]] = {
        "take over": take_over,
        "adopt": adopt,
        "begin": lambda table: table.begin(views[-1], delivery="exactly_once", witness=WITNESS),
        "beat": lambda table: table.heartbeat(views[-1], published=1, in_flight=0, rate=0, witness={PRIMARY: WITNESS}),
        "purge": lambda table: table.windows.purge_published(views[-1], [1], Snapshot(9, 9)),
        "leave": lambda table: table.leave(views[-1]),
        "halt": lambda table: table.halt(views[-1], "why"),
        "pause": lambda table: ask_pause(table.connection, NAME, paused=False),
    }

    def repeat(name: str) -> None:
        with closing(OutboxTable(connect(database, purpose="test"), NAME)) as table:
            table.connection.execute("SET deadlock_timeout = '20ms'")
            while time.monotonic() < end or (done.keys() != acts.keys() and time.monotonic() < end + PATIENCE):
                try:
                    acts[name](table)
                    done[name] = done.get(name, 0) + 1
                except FencedError:
                    pass
                except OutboxError as error:
                    if not is_late(error):
                        trouble.append(f"{name}: {error}")

    threads = [threading.Thread(target=repeat, args=(name,)) for name in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert done.keys() == acts.keys()
    state, shard = (
        row(connection, f"SELECT outbox_id, incarnation, secret FROM {table}")
        for table in ("outbox_state", "outbox_shard")
    )
    assert state == shard


# Originals and copies


def copies(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    tables = ("outbox_state", "outbox_shard")
    return [row(connection, f"SELECT outbox_id, incarnation, secret FROM {table}") for table in tables]


def test_a_new_outbox_changes_the_original_and_the_copies_together(leader: Leader, database: str) -> None:
    leader.connection.execute("UPDATE outbox_shard SET heartbeat_at = NULL, backends = '[]'")
    config = HarvestConfig.validated(
        {"data_source": database, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}, source="test"
    )
    note_history(leader.own, NAME, [ShardNote(member="test", state=State.HEALTHY, backlog=None, rate=0)])
    [before, same] = copies(leader.connection)
    assert before == same
    leader.connection.execute("ALTER TABLE outbox_adopted RENAME TO gone")
    with pytest.raises(OutboxError, match="outbox_adopted"):
        make_new_outbox(config, reason="a test", accept=lambda _: True)
    assert copies(leader.connection) == [before, before]
    assert len(read_history(leader.own, NAME)) == 1
    leader.connection.execute("ALTER TABLE gone RENAME TO outbox_adopted")
    made = make_new_outbox(config, reason="a test", accept=lambda _: True)
    assert made is not None
    [after, same] = copies(leader.connection)
    assert after == same
    assert (after["outbox_id"], after["incarnation"]) == (made[0], before["incarnation"] + 1)
    assert after["secret"] != before["secret"]
    assert read_history(leader.own, NAME) == []  # it was the original's
    with pytest.raises(FencedError):
        leader.purge()


@pytest.mark.parametrize(("table", "name"), [("state", "outbox_state"), ("ledger", "outbox_ledger")])
def test_a_row_that_is_missing_is_named(leader: Leader, table: str, name: str) -> None:
    leader.connection.execute(f"DELETE FROM outbox_{table}".encode())
    with pytest.raises(OutboxMissingError, match=rf'"{name}" has no row'):
        leader.table.take_over(uuid4(), [], member="test")


def test_a_harvesting_role_that_lacks_one_right_is_told(leader: Leader, database: str) -> None:
    with logged_in(database, leader.connection, "harvest") as source:
        user = psycopg.conninfo.conninfo_to_dict(source)["user"]

        def says() -> list[str]:
            with closing(connect(source, purpose="test")) as connection:
                name = located(connection, NAME)
                return [finding.text for finding in _examine_postgres(connection, name) if "may not" in finding.text]

        assert says() == []
        for table, column in {"state": "halted", "shard": "watermark", "ledger": "transactional_ids"}.items():
            leader.connection.execute(f"REVOKE UPDATE ({column}) ON outbox_{table} FROM {user}".encode())
            assert len(found := says()) == 1
            assert f'"outbox_{table}"' in found[0]
            leader.connection.execute(f"GRANT UPDATE ({column}) ON outbox_{table} TO {user}".encode())
        for table in ("parked", "undeleted", "trouble", "member", "history", "positions"):
            leader.connection.execute(f"REVOKE INSERT ON outbox_{table} FROM {user}".encode())
            assert len(found := says()) == 1
            assert f'"outbox_{table}"' in found[0]
            leader.connection.execute(f"GRANT INSERT ON outbox_{table} TO {user}".encode())
