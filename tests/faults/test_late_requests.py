"""Requests of the transaction protocol that come late, twice, never or slowly, in the middle of a load.

A client repeats a request by itself when its connection breaks, and the first copy may still be under way
(KAFKA-17754). Whatever becomes of a copy: every record is there once, in order, whole source transactions stay whole,
and readers wait no longer than a take-over lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from faults.atomic import InterleavedLoad, read_batches, torn
from faults.frame_proxy import NEXT_TRANSACTION, Cut, Delay, Drop, FrameProxy, Late, Treatment, Twice
from faults.frames import Api
from faults.late import LateScene, Mischief

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
INIT_CASES: list[tuple[str, Treatment]] = [
    ("late", Late(((Api.INIT_PRODUCER_ID, 1), (Api.PRODUCE, 3)))),
    ("doubled", Twice()),
    ("unheard", Cut(answered=True)),
    ("lost", Cut(answered=False)),
    ("dropped", Drop()),
    ("delayed", Delay(1.5)),
]
QUICK = {"batch_records": 200, "statement_timeout": 3, "delivery_timeout": 4, "transaction_timeout": 5}
"""So that a request that is never answered is given up in seconds."""


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


@pytest.mark.parametrize(("api", "treatment"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_request_amid_the_load(late_scene: LateScene, api: Api, treatment: Treatment) -> None:
    scene = late_scene
    scene.limits = QUICK if isinstance(treatment, Drop) else scene.limits
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
    scene.limits = {
        **(QUICK if isinstance(treatment, Drop) else scene.limits),
        "session_timeout": 3,
        "heartbeat_timeout": 1,
    }
    leader = scene.leader()
    with scene.readers_go_on():
        scene.midway()
        fault = scene.frames.strike(
            Api.INIT_PRODUCER_ID, treatment, where=lambda request: bool(request.transactional_id)
        )
        scene.member()
        leader.popen.kill()
        scene.struck(fault)
        scene.midway(200)
        scene.ends_well()


def test_at_random(late_scene: LateScene, is_long: bool) -> None:
    scene, enough = late_scene, 200 if is_long else 20
    scene.limits = {"batch_records": 100}
    scene.leader()
    with scene.readers_go_on():
        scene.midway()
        happened = anything_happens(scene.frames, enough=enough)
        scene.wait_until(lambda: happened() >= enough, within=30 * enough)
        scene.ends_well()


def end_requests_are_late(frames: FrameProxy, *, enough: int) -> Callable[[], int]:
    fault = frames.strike(Api.END, Late(NEXT_TRANSACTION), times=enough, where=lambda request: bool(request.commits))
    return lambda: fault.delivered


def anything_happens(frames: FrameProxy, *, enough: int) -> Callable[[], int]:
    mischief = Mischief(seed=int(time.time()), enough=enough)
    mischief.begin(frames)
    return lambda: mischief.late_or_doubled


@pytest.mark.parametrize("late_scene", [True], ids=["atomic"], indirect=True)
@pytest.mark.parametrize("begin", [end_requests_are_late, anything_happens])
def test_whole_transactions_stay_whole(
    late_scene: LateScene, begin: Callable[..., Callable[[], int]], is_long: bool
) -> None:
    scene, enough = late_scene, 60 if is_long else 6
    scene.limits = {"batch_records": 60, "max_in_flight_records": 200}
    load = InterleavedLoad(scene.outbox, sizes=[1, 30, 3, 100, 7, 55])
    member = scene.leader()
    load.start()
    try:
        with scene.readers_go_on():
            happened = begin(scene.frames, enough=enough)
            scene.wait_until(lambda: happened() >= enough, within=30 * enough)
            scene.frames.heal()
            load.finish()
            scene.wait_until(lambda: scene.outbox.left() == 0)
    finally:
        load.finish()
    member.popen.terminate()
    member.ends()
    batches = read_batches(scene.outbox, scene.ledger_topic, scene.servers.kafka)
    assert not torn(load.committed, scene.outbox.committed(), batches), scene.story()
