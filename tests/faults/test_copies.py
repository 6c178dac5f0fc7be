"""A copy of the database, harvested with the original's ledger and producer: the original goes on as if it were alone.

The copy's harvesters have a group of their own, as two databases elect no leader together; all else in Kafka is named
after the outbox's id, which both have.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from faults.histories import Stage, copy_as_it_is, errors_of, told
from support.harvesting import CALM, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import make_leader_topic

BEFORE, SHARED, LATER = 300, 50, 40
ROUNDS = 12  # of LATER records, in which the copy tries again and again
WITNESSED = "SELECT witnessed_batch FROM outbox_ledger"


@pytest.fixture(scope="module")
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server that these tests may stop."""
    with EmbeddedPostgres(server_folder / "copies", fsync=False) as server:
        yield server


@pytest.fixture
def original(
    own_postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    """An outbox of which `BEFORE` records are harvested, and `SHARED` wait."""
    name = f"original_{uuid.uuid4().hex[:12]}"
    outbox = make_outbox(own_postgres.create_database(name), bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    stage = Stage(outbox, own_postgres, tmp_path)
    outbox.stash(BEFORE)
    stage.drain()
    outbox.stash(SHARED, start=BEFORE)
    yield stage
    stage.close()
    own_postgres.drop_database(name)


@pytest.fixture
def template(original: Stage, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """A database that is made from the original as a template."""
    source = str(psycopg.conninfo.conninfo_to_dict(original.outbox.database)["dbname"])
    name = f"copy_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(original.server.dsn(), autocommit=True) as connection:
        sessions = "SELECT FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        wait_until(lambda: not connection.execute(sessions, [source]).fetchall())  # those of a member that has ended
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"'.encode())
    stage = copied(original, original.server, name, topic_prefix, tmp_path)
    yield stage
    stage.close()
    original.server.drop_database(name)


@pytest.fixture
def files(original: Stage, topic_prefix: str, tmp_path: Path, server_folder: Path) -> Iterator[Stage]:
    """Another server, on a copy of the original's files."""
    backup = original.back_up()
    server = EmbeddedPostgres(server_folder / f"files-{uuid.uuid4().hex[:8]}", fsync=False)
    server.folder.mkdir(parents=True)
    server.folder.chmod(0o755)
    copy_as_it_is(backup, server.folder / "data")
    server.start()
    original.use(original.server, str(psycopg.conninfo.conninfo_to_dict(original.outbox.database)["dbname"]))
    name = str(psycopg.conninfo.conninfo_to_dict(original.outbox.database)["dbname"])
    stage = copied(original, server, name, topic_prefix, tmp_path)
    yield stage
    stage.close()
    server.stop("immediate")


def copied(original: Stage, server: EmbeddedPostgres, name: str, prefix: str, folder: Path) -> Stage:
    """A copy with a group and a leader topic of its own."""
    outbox = replace(original.outbox, settings=dict(original.outbox.settings))
    outbox.settings |= {"leader_topic": f"{prefix}copy.leader", "leader_group_id": f"{prefix}copy"}
    folder = folder / "copy"
    folder.mkdir()
    stage = Stage(outbox, server, folder)
    stage.use(server, name)
    config = HarvestConfig.validated(outbox.settings, source="test")
    make_leader_topic(config, stage.names)
    return stage


def everything() -> dict[str, list[int]]:
    last = BEFORE + SHARED + ROUNDS * LATER
    return {f"k{key}": [n for n in range(last) if n % 10 == key] for key in range(10)}


def highest_id(stage: Stage) -> int:
    """The last one that was drawn."""
    return int(stage.outbox.query("SELECT last_value FROM outbox_id_seq")[0][0])


def goes_on(original: Stage, leader: Process) -> None:
    """The original's leader publishes what comes, round after round, under the view that it has."""
    since = len(leader.events)
    with told(leader, *original.started):
        for number in range(ROUNDS):
            original.outbox.stash(LATER, start=BEFORE + SHARED + number * LATER)
            wait_until(lambda: original.outbox.left() == 0, doing="a round")
            time.sleep(0.5)
        undisturbed(leader, since=since)
    assert original.outbox.by_key() == everything()


def undisturbed(leader: Process, *, since: int = 0) -> None:
    """It had its view all the time since it had announced so many events, and no term of it has failed."""
    assert leader.own_views(since=since) <= 0
    failed = [each for each in leader.events[since:] if each["event"] == "error" and each["retry_in"] is not None]
    assert failed == []


def test_a_template_never_disturbs_the_original(original: Stage, template: Stage) -> None:
    leader = original.harvester(limits=CALM)
    original.is_drained()
    rival = template.harvester()
    template.outbox.stash(10, start=10**6)
    with told(rival, leader):
        wait_until(lambda: any("a copy in the same cluster" in error for error in errors_of(rival)), doing="noticing")
    goes_on(original, leader)
    assert any("airflow-outbox adopt --as-new-outbox" in error for error in errors_of(rival))
    assert template.outbox.left() == SHARED + 10


def test_a_copy_of_the_files_never_disturbs_an_original_that_has_gone_on(original: Stage, files: Stage) -> None:
    leader = original.harvester(limits=CALM)
    original.is_drained()
    wait_until(lambda: original.outbox.query(WITNESSED) > files.outbox.query(WITNESSED))
    original.outbox.stash(LATER, start=BEFORE + SHARED)  # the ledger says so
    original.is_drained()
    rival = files.harvester()
    with told(rival, leader):
        wait_until(lambda: any("restored to an earlier time" in error for error in errors_of(rival)), doing="noticing")
        for number in range(1, ROUNDS):  # a producer that is fenced notices when it publishes
            original.outbox.stash(LATER, start=BEFORE + SHARED + number * LATER)
            wait_until(lambda: original.outbox.left() == 0, doing="a round")
            time.sleep(0.5)
        undisturbed(leader)
    assert files.outbox.left() == SHARED
    assert original.outbox.by_key() == everything()


def test_a_copy_that_publishes_first_lets_the_original_purge_nothing_wrong(original: Stage, files: Stage) -> None:
    """The files are as new as the ledger, so nobody can notice the copy. Its own records have the ids of what the
    original writes next. The original halts, and says why; when it is adopted, all that it has comes out.
    """
    files.outbox.stash(LATER, start=10**6)
    files.drain()
    original.outbox.stash(LATER, start=BEFORE + SHARED)
    assert highest_id(original) == highest_id(files)
    leader = original.harvester()
    original.refuses(leader, "the ledger knows more of the leaders than the database")
    assert original.outbox.left() == SHARED + LATER
    leader.popen.terminate()
    leader.ends()
    original.adopt()
    original.drain()
    times = Counter(number for _, number in original.outbox.published())
    assert all(times[number] == 1 for number in [*range(BEFORE), *range(BEFORE + SHARED, BEFORE + SHARED + LATER)])
    assert all(times[number] in (1, 2) for number in range(BEFORE, BEFORE + SHARED))


COPIES = ["template", "files"]


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_becomes_an_outbox_of_its_own(original: Stage, kind: str, request: pytest.FixtureRequest) -> None:
    """Records in both come twice, and that is said before; no others do, and the original goes on."""
    copy: Stage = request.getfixturevalue(kind)
    leader = original.harvester(limits=CALM)
    original.is_drained()
    rival = copy.harvester()
    rival.wait_for("view")
    asked = ("adopt", "--reason", "a test", "--yes", "--as-new-outbox")
    assert "Stop all harvesters of this database" in copy.refused(*asked)
    rival.popen.terminate()
    rival.ends()
    before = copy.names
    said: list[str] = []

    def is_done() -> bool:
        said.append(copy.try_command(*asked))
        return "this is outbox" in said[-1]

    wait_until(is_done, doing="the member that the fence row names is silent")
    assert f"{SHARED} records wait in it" in said[-1]
    assert "airflow-outbox init" in said[-1]
    assert copy.names.ledger_topic != before.ledger_topic
    assert copy.names.transactional_id != before.transactional_id
    copy.command("init")
    copy.harvester()
    copy.is_drained()
    twice = [*range(BEFORE + SHARED), *range(BEFORE, BEFORE + SHARED)]
    assert sorted(number for _, number in original.outbox.published()) == sorted(twice)
    original.outbox.stash(LATER, start=BEFORE + SHARED)
    copy.outbox.stash(LATER, start=10**6)
    original.is_drained()
    copy.is_drained()
    undisturbed(leader)


def test_a_harvester_that_was_started_for_the_original_does_not_lead_the_new_outbox(
    original: Stage, template: Stage
) -> None:
    """One that had stood by, and knows the names that the copy had."""
    rival = template.harvester()
    with told(rival):
        wait_until(lambda: bool(errors_of(rival)), doing="noticing")
    template.execute(
        "WITH made AS (UPDATE outbox_state SET outbox_id = gen_random_uuid(), halted = NULL, system_identifier = NULL"
        " RETURNING outbox_id) UPDATE outbox_shard SET outbox_id = made.outbox_id FROM made"
    )
    with told(rival):
        wait_until(lambda: any("no longer outbox" in error for error in errors_of(rival)), doing="noticing")
    assert template.outbox.left() == SHARED
