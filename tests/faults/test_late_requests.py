"""Requests of the transaction protocol that come late, twice, never or slowly, in the middle of a load.

A client repeats a request by itself when its connection breaks, and the first copy may still be under way
(KAFKA-17754). Whatever becomes of a copy: every record is there once, in order, whole source transactions stay whole,
and no reader waits until a transaction's time is up.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faults.asking import Asker
from faults.atomic import InterleavedLoad, read_batches, torn
from faults.frames import Api
from faults.late import QUICK, LateScene, Mischief
from faults.treatments import NEXT_TRANSACTION, Cut, Delay, Drop, Hold, Late, Treatment, Twice
from faults.zombie import command
from support.harvesting import PATIENCE, SHORT_SESSION

CASES: list[tuple[str, Api, Treatment]] = [
    ("end-late", Api.END, Late(NEXT_TRANSACTION)),
    ("end-late_and_idle", Api.END, Late(((Api.END, 1),))),
    ("end-doubled", Api.END, Twice()),
    ("end-unheard", Api.END, Cut(answered=True)),
    ("end-lost", Api.END, Cut(answered=False)),
    ("end-dropped", Api.END, Drop()),
    ("end-delayed", Api.END, Delay(1.5)),
    ("add-late", Api.ADD_PARTITIONS, Late(NEXT_TRANSACTION)),
    ("add-late_and_idle", Api.ADD_PARTITIONS, Late(((Api.END, 1),))),
    ("add-doubled", Api.ADD_PARTITIONS, Twice()),
    ("add-unheard", Api.ADD_PARTITIONS, Cut(answered=True)),
    ("add-lost", Api.ADD_PARTITIONS, Cut(answered=False)),
    ("add-dropped", Api.ADD_PARTITIONS, Drop()),
    ("add-delayed", Api.ADD_PARTITIONS, Delay(1.5)),
    ("produce-late", Api.PRODUCE, Late(NEXT_TRANSACTION)),
    ("produce-late_and_idle", Api.PRODUCE, Late(((Api.END, 1),))),
    ("produce-doubled", Api.PRODUCE, Twice()),
    ("produce-unheard", Api.PRODUCE, Cut(answered=True)),
    ("produce-lost", Api.PRODUCE, Cut(answered=False)),
    ("produce-dropped", Api.PRODUCE, Drop()),
    ("produce-delayed", Api.PRODUCE, Delay(1.5)),
]


def is_milder(case: str) -> bool:
    """Whether another case of the same request shows more: what is lost or delayed was never done, or is done once."""
    return case.endswith(("-lost", "-delayed")) or case in ("add-doubled", "add-late_and_idle")


INIT_CASES: list[tuple[str, Treatment]] = [
    ("late", Late(((Api.INIT_PRODUCER_ID, 1), (Api.PRODUCE, 3)))),
    ("doubled", Twice()),
    ("unheard", Cut(answered=True)),
    ("lost", Cut(answered=False)),
    ("dropped", Drop()),
    ("delayed", Delay(1.5)),
]
ENOUGH = {"short": 20, "long": 200}
"""Requests that are late or doubled at random."""


def test_end_requests_that_come_in_the_next_transaction(late_scene: LateScene, is_long: bool) -> None:
    """A backlog in batches of 500; eight times in the long form."""
    scene, times = late_scene, 8 if is_long else 2
    scene.records, scene.pot, scene.limits = (40_000 if is_long else 8_000), 4_000, {"batch_records": 500}
    scene.leader()
    with scene.readers_go_on():
        late = scene.frames.strike(
            Api.END, Late(NEXT_TRANSACTION), times=times, where=lambda request: bool(request.commits)
        )
        scene.midway()
        scene.wait_until(lambda: late.delivered == times)
        scene.ends_well()


@pytest.mark.parametrize(
    ("api", "treatment"),
    [pytest.param(*case[1:], id=case[0], marks=[pytest.mark.long] if is_milder(case[0]) else []) for case in CASES],
)
def test_a_request_amid_the_load(late_scene: LateScene, api: Api, treatment: Treatment) -> None:
    scene = late_scene
    scene.limits |= QUICK if isinstance(treatment, Drop) else {}
    scene.leader()
    with scene.readers_go_on():
        scene.midway()
        scene.struck(scene.frames.strike(api, treatment, where=lambda request: request.transactional_id is not None))
        scene.midway(200)
        scene.ends_well()


@pytest.mark.parametrize("treatment", [case[1] for case in INIT_CASES], ids=[case[0] for case in INIT_CASES])
def test_a_producers_beginning(late_scene: LateScene, treatment: Treatment) -> None:
    """InitProducerId, of a member that takes over in the middle of the load."""
    scene = late_scene
    scene.limits = {**(QUICK if isinstance(treatment, Drop) else scene.limits), **SHORT_SESSION}
    leader = scene.leader()
    with scene.readers_go_on():
        scene.midway()
        successor = scene.client_id(len(scene.members))
        fault = scene.frames.strike(
            Api.INIT_PRODUCER_ID,
            treatment,
            where=lambda request: bool(request.transactional_id) and request.client_id == successor,
        )
        scene.member()
        leader.popen.kill()
        scene.struck(fault)
        scene.midway(200)
        scene.ends_well()


@pytest.mark.parametrize("api", [Api.ADD_PARTITIONS, Api.PRODUCE], ids=["add", "produce"])
def test_a_request_that_is_held_until_its_leader_has_given_up(late_scene: LateScene, api: Api) -> None:
    """It reaches the broker on its old connection while the next view is at work."""
    scene = late_scene
    scene.limits |= QUICK
    leader = scene.leader()
    with scene.readers_go_on():
        scene.midway()
        since = len(leader.events)
        held = scene.frames.strike(api, Hold(), where=lambda request: request.transactional_id is not None)
        scene.wait_until(held.struck.is_set)
        scene.next_event(leader, "view", since=since)
        scene.midway(200)
        held.strikes[0].deliver()
        scene.struck(held)
        scene.midway(200)
        scene.ends_well()


def test_without_a_new_epoch_a_late_request_doubles_records(late_scene: LateScene) -> None:
    """So these tests bite. With one producer, its next transaction is the next of all. Its entry in the ledger is
    held, so that the late copy commits the records without it.
    """
    scene = late_scene
    scene.limits |= {"batch_records": 500, "transactional_ids": 1}
    scene.leader(command=command(without=("new epochs",)))
    scene.midway()
    late = scene.frames.strike(Api.END, Late(NEXT_TRANSACTION), where=lambda request: bool(request.commits))
    entry = scene.frames.strike(Api.PRODUCE, Hold(), where=lambda _: late.delivered == 1)
    scene.wait_until(entry.struck.is_set)
    assert late.strikes[0].answered.wait(PATIENCE)
    entry.strikes[0].deliver()
    with pytest.raises(AssertionError, match=r"[1-9]\d* duplicates"):
        scene.ends_well()


def test_at_random(late_scene: LateScene, is_long: bool, seed: int) -> None:
    """Windows are short, so that transactions are told to be published in the midst of it."""
    scene, enough = late_scene, ENOUGH["long" if is_long else "short"]
    scene.pot = 500
    scene.limits |= {"batch_records": 100, **QUICK}
    scene.leader()
    with scene.readers_go_on():
        scene.midway(250)
        with Asker(scene) as asker:
            happened = anything_happens(scene, seed=seed, enough=enough)
            count(scene, happened, enough)
            scene.ends_well()
            scene.wait_until(lambda: asker.has_heard(5))
    asker.told_the_truth()


def count(scene: LateScene, happened: Callable[[], int], enough: int) -> None:
    """Wait until it has happened so often, one time after the other."""
    for times in range(1, enough + 1):
        scene.wait_until(lambda: happened() >= times)  # noqa: B023


def end_requests_are_late(scene: LateScene, *, seed: int, enough: int) -> Callable[[], int]:
    late = Late(NEXT_TRANSACTION)
    fault = scene.frames.strike(Api.END, late, times=enough, where=lambda request: bool(request.commits))
    return lambda: fault.delivered


def anything_happens(scene: LateScene, *, seed: int, enough: int) -> Callable[[], int]:
    mischief = Mischief(seed=seed, enough=enough)
    mischief.begin(scene.frames, scene.between)
    return lambda: mischief.late_or_doubled


@pytest.mark.parametrize("late_scene", [True], ids=["atomic"], indirect=True)
@pytest.mark.parametrize("begin", [end_requests_are_late, anything_happens])
def test_whole_transactions_stay_whole(
    late_scene: LateScene, begin: Callable[..., Callable[[], int]], is_long: bool, seed: int
) -> None:
    scene, enough = late_scene, ENOUGH["long"] if is_long else 6
    scene.limits = {"batch_records": 60, "max_in_flight_records": 200, **QUICK}
    load = InterleavedLoad(scene.outbox, sizes=[1, 30, 3, 100, 7, 55])
    member = scene.leader()
    load.start()
    try:
        with scene.readers_go_on():
            happened = begin(scene, seed=seed, enough=enough)
            count(scene, happened, enough)
            for proxy in (scene.frames, scene.between):
                proxy.heal()
            load.finish()
            scene.wait_until(lambda: scene.outbox.left() == 0)
    finally:
        load.finish()
    member.popen.terminate()
    member.ends()
    batches = read_batches(scene.outbox, scene.ledger_topic, scene.servers.kafka)
    assert not torn(load.committed, scene.outbox.committed(), batches), scene.story()
