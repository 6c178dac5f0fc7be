"""A record that was to wait behind a parked one is sent after all if that one goes just then.

Nothing would release it: the release that follows a discarding, or a retry, overtakes it.

- At least once, the record is marked while the discarding of the parked one is under way. It has to wait then. But
  once it could be parked, its lane is free again.
- Exactly once, with lanes that only Postgres knows: its answer may be older than the discarding, and be heard later.
  And it has a published record until that one's batch is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from simulation.checker import seen
from simulation.loop import simulate
from simulation.world import SOUND, Design, Member, World

from airflow_outbox.harvest.protocol.parking import Diversion, ParkedLanes
from airflow_outbox.values.pages import ID
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

_SLOW = 1.0  # seconds that a statement takes on its way
_LONGEST = 20.0


def _record(number: int, key: str = "k") -> MarkedRecord:
    return MarkedRecord(number, "t", key, f"v{number}", [], [], None)


async def _freed_just_then(design: Design, request: str, going: str, slow: Mapping[tuple[str, str], float]) -> World:
    """A parked record goes by this request; the next one of its lane is stashed as `going`, a statement, is asked.
    Another record of the topic stays parked.
    """
    world = World(1)
    world.broker.told |= dict.fromkeys(("v1", "v2"), Refusal(Cause.TOO_LARGE, "simulated"))
    world.database.stash(_record(1), _record(2, key="another"))
    member = Member(world, design)
    async with asyncio.timeout(_LONGEST):
        while len(world.database.state.parked) < 2:
            await asyncio.sleep(0.1)

    following = [_record(3)]

    def watch(_: Member, question: str, phase: str) -> float:
        if (question, phase) == (going, "asked") and following:
            world.database.stash(following.pop())
        return slow.get((question, phase), 0.0)

    del world.broker.told["v1"]
    world.database.statement("ask", (1,), request)
    world.watch = watch
    await asyncio.sleep(_LONGEST)
    await member.stop()
    return world


def _values(world: World) -> list[object]:
    return [record.value for record in seen(world.broker)]


def _published() -> list[object]:
    slow = {("discard_requested", "asked"): _SLOW, ("park", "asked"): _SLOW}
    return _values(simulate(_freed_just_then(Design(delivery="at_least_once"), "discard", "discard_requested", slow)))


def _published_behind_a_discarded_one() -> list[object]:
    slow = {("discard_requested", "asked"): _SLOW, ("waiting_lanes", "answered"): 2 * _SLOW}
    slow["park", "asked"] = 3 * _SLOW
    with patch.object(ParkedLanes, "most_lanes", 0):
        return _values(simulate(_freed_just_then(SOUND, "discard", "discard_requested", slow)))


def _published_behind_a_published_one() -> list[object]:
    slow = {("unpark", "asked"): _SLOW, ("park", "asked"): 3 * _SLOW}
    with patch.object(ParkedLanes, "most_lanes", 0):
        return _values(simulate(_freed_just_then(SOUND, "retry", "unpark", slow)))


def _as_before(_: ParkedLanes, rows: Sequence[Any], refusals: Mapping[int, Refusal]) -> Diversion[Any]:
    refused = {row[ID]: refusals[row[ID]] for row in rows if row[ID] in refusals}
    return Diversion((), refused, [row[ID] for row in rows if row[ID] not in refused])


def test_it_does_not_wait_for_what_is_gone() -> None:
    assert _published() == ["v3"]


def test_it_would_wait_for_ever() -> None:
    with patch.object(ParkedLanes, "divert_again", _as_before):
        assert _published() == []


def test_it_does_not_wait_for_a_discarded_one_of_which_postgres_has_told() -> None:
    assert _published_behind_a_discarded_one() == ["v3"]


def test_it_would_wait_for_ever_if_old_answers_were_believed() -> None:
    with patch.object(ParkedLanes, "are_answers_old", property(lambda _: False, lambda *_: None), create=True):
        assert _published_behind_a_discarded_one() == []


def test_it_does_not_wait_for_a_published_one_that_postgres_still_has() -> None:
    assert _published_behind_a_published_one() == ["v1", "v3"]


def test_it_would_wait_for_ever_if_postgres_were_not_told_what_is_published() -> None:
    with patch.object(ParkedLanes, "leaving", ()):
        assert _published_behind_a_published_one() == ["v1"]
