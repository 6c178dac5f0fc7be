"""Another history of the database or the ledger: it is noticed, nothing is purged unpublished, and when an operator has
adopted it, harvesting goes on.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from faults.histories import Stage, has_caught_up, promote, replica
from faults.zombie import command
from support.harvesting import CALM, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

BEFORE, AFTER = 600, 300  # records that are harvested, and records that are stashed into another history


@pytest.fixture(scope="module")
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server that these tests may stop."""
    with EmbeddedPostgres(server_folder / "histories", fsync=False) as server:
        yield server


@pytest.fixture
def stage(own_postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """An outbox of which `BEFORE` records are harvested."""
    name = f"history_{uuid.uuid4().hex[:12]}"
    outbox = make_outbox(own_postgres.create_database(name), bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    stage = Stage(outbox, own_postgres, tmp_path)
    outbox.stash(BEFORE)
    yield stage
    stage.close()
    own_postgres.start()
    own_postgres.drop_database(name)


def numbers(*ranges: range, keys: int = 10) -> dict[str, list[int]]:
    """The records that each key's consumer sees, when these are published one after the other."""
    return {f"k{key}": [n for numbers in ranges for n in numbers if n % keys == key] for key in range(keys)}


ALL = numbers(range(BEFORE + AFTER))

EXCHANGES: dict[str, tuple[Callable[[Stage], None], str]] = {
    "truncated": (
        lambda stage: stage.execute("TRUNCATE outbox RESTART IDENTITY"),
        "it was set back",
    ),
    "sequence set back": (
        lambda stage: stage.execute("SELECT setval('outbox_id_seq', 1)"),
        "it was set back",
    ),
    "table recreated": (Stage.recreate_table, "the outbox's table was dropped and recreated"),
}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_exchange_while_nobody_harvests(stage: Stage, exchange: str) -> None:
    act, says = EXCHANGES[exchange]
    stage.drain()
    act(stage)
    stage.outbox.stash(AFTER, start=BEFORE)
    stage.refuses(stage.harvester(), says)
    assert stage.outbox.left() == AFTER
    assert says in stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == ALL


@pytest.mark.long(exchange="sequence set back")
@pytest.mark.long(exchange="table recreated")
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_exchange_while_a_leader_harvests(stage: Stage, exchange: str) -> None:
    act, says = EXCHANGES[exchange]
    process = stage.harvester()
    stage.is_drained()
    process.wait_for("progress", published=BEFORE)
    act(stage)
    stage.outbox.stash(AFTER, start=BEFORE)
    stage.refuses(process, says)
    stage.outbox.stash(AFTER, start=BEFORE + AFTER)
    stage.refuses(process, says)
    assert stage.outbox.left() >= AFTER
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE + 2 * AFTER))


@pytest.mark.long
def test_ids_that_overtake_what_was_published_do_not_end_the_refusal(stage: Stage) -> None:
    stage.drain()
    stage.execute("TRUNCATE outbox RESTART IDENTITY")
    first = stage.harvester()
    stage.refuses(first, "it was set back")
    stage.outbox.stash(2 * BEFORE, start=BEFORE)
    first.popen.kill()
    stage.refuses(stage.harvester(), "it was set back")
    assert stage.outbox.left() == 2 * BEFORE
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(3 * BEFORE))


@pytest.mark.parametrize("later", ["at once", "when ids and transaction ids are higher than before"])
def test_a_base_backup_is_restored(stage: Stage, later: str) -> None:
    stage.drain()
    backup = stage.back_up()
    stage.outbox.stash(100, start=BEFORE)
    stage.drain()
    stage.restore(backup)
    assert stage.outbox.left() == 0
    if later != "at once":
        stage.use_up_transaction_ids()
    stage.outbox.stash(AFTER, start=BEFORE + 100)
    stage.refuses(stage.harvester(), "restored to an earlier time")
    assert stage.outbox.left() == AFTER
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE + 100 + AFTER))


def test_records_that_a_restore_brings_back_are_published_once_more(stage: Stage) -> None:
    backup = stage.back_up()
    stage.drain()
    stage.restore(backup)
    assert stage.outbox.left() == BEFORE
    stage.refuses(stage.harvester(), "the ledger was written before this database had one")
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE), range(BEFORE))


@pytest.mark.long
def test_a_backup_from_before_an_earlier_adoption_is_adopted_at_once(stage: Stage) -> None:
    stage.drain()
    backup = stage.back_up()
    stage.execute("TRUNCATE outbox RESTART IDENTITY")
    stage.outbox.stash(AFTER, start=BEFORE)
    stage.refuses(stage.harvester(), "it was set back")
    stage.adopt()
    stage.is_drained()
    for process in stage.started:
        process.end()
    stage.restore(backup)
    stage.outbox.stash(AFTER, start=BEFORE + AFTER)
    stage.refuses(stage.harvester(), "it was restored")
    assert "incarnation 3" in stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE + 2 * AFTER))


@pytest.fixture
def follower(stage: Stage, tmp_path: Path, server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A replica that has all that was harvested, and no more."""
    stage.drain()
    follower = replica(stage.server, server_folder / f"replica-{uuid.uuid4().hex[:8]}")
    yield follower
    follower.stop("immediate")


def name_of(stage: Stage) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(stage.outbox.database)["dbname"])


def test_an_asynchronous_replica_is_promoted(stage: Stage, follower: EmbeddedPostgres) -> None:
    stage.outbox.stash(100, start=BEFORE)
    stage.drain()
    stage.server.kill()
    follower.start()
    promote(follower)
    stage.use(follower, name_of(stage))
    stage.outbox.stash(AFTER, start=BEFORE + 100)
    stage.refuses(stage.harvester(), "a replica was promoted")
    assert stage.outbox.left() == AFTER
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE + 100 + AFTER))


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.long), ("--nothing-lost",)], ids=" ".join)
def test_a_switch_over_in_order(stage: Stage, follower: EmbeddedPostgres, options: tuple[str, ...]) -> None:
    """The leader dies between commit and purge: the ledger knows what is published, and the replica still has it."""
    follower.start()
    leader = stage.harvester(command=command(stop="purge", armed=True))
    leader.wait_for("view")
    stage.outbox.stash(100, start=BEFORE)
    wait_until(lambda: len(stage.outbox.published()) == BEFORE + 100)
    leader.popen.kill()
    assert stage.outbox.left() == 100
    wait_until(lambda: has_caught_up(stage.server, follower))
    stage.server.stop()
    promote(follower)
    stage.use(follower, name_of(stage))
    stage.outbox.stash(AFTER, start=BEFORE + 100)
    stage.refuses(stage.harvester(), "a replica was promoted")
    stage.adopt(*options)
    stage.is_drained()
    again = range(BEFORE, BEFORE + 100) if not options else range(0)
    assert stage.outbox.by_key() == numbers(range(BEFORE + 100), again, range(BEFORE + 100, BEFORE + 100 + AFTER))


def test_a_dump_is_loaded_into_another_cluster(stage: Stage, postgres: EmbeddedPostgres) -> None:
    """Its records keep the transaction ids of the cluster that they come from."""
    stage.drain()
    stage.use_up_transaction_ids()
    stage.outbox.stash(AFTER, start=BEFORE)
    name = name_of(stage)
    dumped = subprocess.run(
        [stage.server.programs / "pg_dump", stage.outbox.database], check=True, capture_output=True, cwd="/"
    )
    database = postgres.create_database(name)
    try:
        subprocess.run(
            [postgres.programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", database],
            input=dumped.stdout,
            check=True,
            cwd="/",
            stdout=subprocess.DEVNULL,
        )
        stage.use(postgres, name)
        stage.refuses(stage.harvester(), "another database cluster")
        assert stage.outbox.left() == AFTER
        stage.adopt()
        stage.is_drained()
        assert stage.outbox.by_key() == ALL
    finally:
        stage.close()
        postgres.drop_database(name)


def test_the_ledger_is_deleted_and_made_anew(stage: Stage) -> None:
    stage.drain()
    stage.delete_topic(stage.names.ledger_topic)
    stage.outbox.stash(AFTER, start=BEFORE)
    process = stage.harvester()
    stage.refuses(process, f"topic {stage.names.ledger_topic}")
    stage.command("init")
    stage.refuses(process, "the ledger ends at offset 0, but")
    assert stage.outbox.left() == AFTER
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == ALL


def test_the_ledger_is_deleted_and_made_anew_while_a_leader_harvests(stage: Stage) -> None:
    """It shows by the offsets, which go up as long as it is the same topic: here after a few batches.

    One more batch is published before that. Its leader must not be unseated meanwhile: it would notice sooner.
    """
    process = stage.harvester(limits=CALM)
    stage.is_drained()
    for start in range(BEFORE, BEFORE + AFTER, 100):
        stage.outbox.stash(100, start=start)
        stage.is_drained()
    process.wait_for("progress", published=BEFORE + AFTER)
    stage.delete_topic(stage.names.ledger_topic)
    stage.command("init")
    stage.outbox.stash(AFTER, start=BEFORE + AFTER)
    stage.refuses(process, "deleted and recreated")
    stage.outbox.stash(AFTER, start=BEFORE + 2 * AFTER)
    stage.refuses(process, "deleted and recreated")
    assert stage.outbox.left() == AFTER
    stage.adopt()
    stage.is_drained()
    assert stage.outbox.by_key() == numbers(range(BEFORE + 3 * AFTER))


def test_the_ledger_is_another_outboxs(stage: Stage, kafka: EmbeddedKafka, topic_prefix: str) -> None:
    stage.drain()
    name = f"history_{uuid.uuid4().hex[:12]}"
    settings = {"ledger_topic": stage.names.ledger_topic}
    other = Stage(
        make_outbox(
            stage.server.create_database(name), bootstrap=kafka.bootstrap, topic=topic_prefix + "other", **settings
        ),
        stage.server,
        stage.folder,
    )
    try:
        other.outbox.stash(AFTER)
        process = other.harvester()
        other.refuses(process, "the ledger belongs to outbox")
        assert other.outbox.left() == AFTER
        said = other.refused("adopt", "--reason", "a test", "--yes")
        assert "two outboxes can't share one. Remove ledger_topic" in said
        process.end()
        del other.outbox.settings["ledger_topic"]
        other.command("init")
        assert "belongs to outbox" in other.adopt()
        other.drain()
        assert sorted(number for _, number in other.outbox.published()) == list(range(AFTER))
    finally:
        other.close()
        stage.server.drop_database(name)
    stage.outbox.stash(AFTER, start=BEFORE)
    stage.drain()
    assert stage.outbox.by_key() == ALL
