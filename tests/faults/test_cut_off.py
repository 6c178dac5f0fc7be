"""Members, operators and clusters that do not all reach one another: who leads then, and that nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from confluent_kafka import Message, Producer
from faults import late_leader
from faults.atomic import everything
from faults.clustered import command
from faults.processes import is_stopped
from faults.regions import BOTH, CUT_OFF_LIMITS, DETACH_AFTER, POSTGRES, PROMOTED, Region, Regions
from support.harvesting import PATIENCE, Process, wait_until

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State

NOTE_VIEWS = """
CREATE TABLE noted (id bigserial PRIMARY KEY, records bigint);
CREATE FUNCTION note_records() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.noted (records) SELECT count(*) FROM public.outbox;
    RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER UPDATE OF view ON outbox_shard
    FOR EACH ROW WHEN (OLD.view IS DISTINCT FROM NEW.view) EXECUTE FUNCTION note_records();
"""
"""Notes how many records wait whenever the shard gets another view."""
NOTED = "SELECT records FROM noted ORDER BY id"


@pytest.fixture
def scene(regional_scene: Regions) -> Regions:
    return regional_scene


def goes_on(leader: Process) -> int:
    """A frozen leader goes on, until its term is over: by the group, by the fence, or because it hears of the
    promotion. Return how many events it had announced before.
    """
    since = len(leader.events)
    view = [each["view"] for each in leader.events if each["event"] == "took_over"][-1]
    os.kill(leader.popen.pid, signal.SIGCONT)

    def is_over() -> bool:
        reports = [each for each in leader.events[since:] if each["event"] == "progress"]
        return bool(reports) and reports[-1]["view"] != view

    wait_until(is_over, doing=lambda: str(leader.events[since:]))
    return since


def batches(scene: Regions, cluster: str) -> set[tuple[str, int]]:
    """The batches that were ever committed on a cluster, by view and number."""
    names = KafkaNames.of(
        HarvestConfig.validated(scene.outbox.settings, source="test"),
        scene.outbox.query("SELECT outbox_id FROM outbox_state")[0][0],
    )
    messages = everything(scene.on[cluster].bootstrap, names.ledger_topic)
    entries = [json.loads(each.value() or b"") for each in messages if is_entry(each)]
    return {(entry["view"], entry["batch"]) for entry in entries}


def end_transactions(scene: Regions, cluster: str) -> None:
    """Abort what producers of the outbox have left open on a cluster that counts no more, so that readers come past."""
    for (names,) in scene.outbox.query(f"SELECT transactional_ids FROM outbox_ledger WHERE cluster = '{cluster}'"):
        for name in names:
            producer = Producer({"bootstrap.servers": scene.on[cluster].bootstrap, "transactional.id": name})
            producer.init_transactions(PATIENCE)


def is_entry(message: Message) -> bool:
    return (message.key() or b"").startswith(b"batch/") and bool(message.value())


def stands_by(member: Process) -> None:
    member.wait_for("progress", standing="standby")


def stands_behind(member: Process, leader: Process, scene: Regions) -> None:
    """Wait until a member stands by, unless a busy machine has unseated the one that leads."""
    wait_until(
        lambda: member.newest_progress["standing"] == "standby" or leader.was_unseated,
        doing=scene.story,
    )


@pytest.mark.parametrize("where", ["primary", "west", POSTGRES])
def test_another_member_leads_that_is_not_cut_off_and_nothing_is_detached(scene: Regions, where: str) -> None:
    leader = scene.leader(behind=(where,))
    other = scene.start()
    stands_by(other)
    scene.stash(200)
    scene.drains()
    scene.proxies[where].swallow()
    scene.stash(200)
    other.wait_for("took_over")
    scene.drains()
    for _ in range(4):  # longer than the leader that was would have had to wait
        scene.stash(50)
        time.sleep(DETACH_AFTER)
        scene.drains()
    detached = {event["event"] for member in scene.members for event in member.events} & {"detached"}
    if not other.was_unseated:  # or the one that is cut off may have led once more
        assert not detached
        assert scene.membership.parts == BOTH
    scene.proxies[where].heal()
    stands_behind(leader, other, scene)
    scene.ends_well(*({"primary"} if detached else ()))


def test_between_a_primary_without_postgres_and_a_postgres_without_primary_an_operator_decides(scene: Regions) -> None:
    """The member in the primary's region reaches no Postgres, and the one beside Postgres no primary."""
    beside_primary = scene.leader(behind=(POSTGRES,))
    beside_postgres = scene.start(behind=("primary",))
    stands_by(beside_postgres)
    scene.stash(200)
    scene.drains()
    for where in (POSTGRES, "primary"):
        scene.proxies[where].swallow()
    scene.stash(500)
    config = HarvestConfig.validated(scene.outbox.settings, source="test")
    wait_until(lambda: read_verdict(config).state in (State.STALLED, State.NO_LEADER), doing=scene.story)
    waiting = scene.outbox.left()
    assert waiting > 0
    assert scene.membership.parts == BOTH
    assert scene.promote("west", behind=("primary",)).parts == PROMOTED
    beside_postgres.wait_for("took_over")
    scene.ends_well("west")
    for where in (POSTGRES, "primary"):
        scene.proxies[where].heal()
    stands_behind(beside_primary, beside_postgres, scene)
    scene.stash(200)
    scene.ends_well("west")


@pytest.mark.parametrize("case", ["first", "late", "last"])
def test_a_leader_that_was_frozen_purges_nothing_after_a_promotion(scene: Regions, case: str) -> None:
    """It stands still between its commits on the primary and on the backup. When it goes on, it is the first member
    after the promotion, or another one leads already.

    The first one may go on committing, on the primary and on the backup in turn, until it learns that it leads no more
    (`late`: not before it has committed on the primary once more). That doubles nothing: at any time, the primary has
    at most one batch alone.
    """
    scene.outbox.query(NOTE_VIEWS)
    child = late_leader.COMMAND if case == "late" else command(stop="commit on a backup")
    frozen = scene.leader(child=child, limits={"transaction_timeout": 60, "delivery_timeout": 30})
    os.kill(frozen.popen.pid, signal.SIGUSR1)
    scene.stash(300)
    wait_until(lambda: is_stopped(frozen), doing=scene.story)
    waiting = scene.outbox.left()
    assert waiting > 0
    assert len(scene.on["primary"].committed()) <= CUT_OFF_LIMITS["batch_records"]
    scene.proxies["primary"].swallow()
    assert scene.promote("west", behind=("primary",)).parts == PROMOTED
    promoted = len(scene.outbox.query(NOTED))
    if case == "last":
        successor = scene.leader(behind=("primary",))
        scene.drains()
        since = goes_on(frozen)
        scene.stash(300)
        scene.drains()
        if "took_over" not in {event["event"] for event in frozen.events[since:]}:  # or it was elected once more
            assert "fenced" not in {event["event"] for event in successor.events}
    else:
        since = goes_on(frozen)
    scene.ends_well("west")
    assert scene.outbox.query(NOTED)[promoted] == (waiting,), "the next view finds all that waited"
    end_transactions(scene, "primary")
    on_primary = [int(message.value() or b"") for message in scene.on["primary"].committed()]
    assert len(on_primary) == len(set(on_primary))
    committed = batches(scene, "primary")
    assert len(committed - batches(scene, "west")) <= 1
    assert len(committed) == 1 or case != "last"
    if "error" not in {event["event"] for event in frozen.events[since:]}:  # or its term has ended before
        assert len(committed) >= (2 if case == "late" else 1), scene.story()


def test_harvesting_goes_on_after_the_primary_is_lost_for_good_and_nothing_is_missing(
    scene: Regions, regions_of_two: dict[str, Region]
) -> None:
    scene.leader()
    stands_by(scene.start())
    scene.loses(regions_of_two["primary"].kafka)
    scene.ends_well("west")
