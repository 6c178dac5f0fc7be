"""At least once: a record that was to wait behind a parked one is sent after all if that one goes just then.

The record is marked while the discarding of the parked one is under way. It has to wait then, but once it could be
parked its lane is free again. Nothing would release it: the release that follows a discarding overtakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from simulation.checker import seen
from simulation.loop import simulate
from simulation.world import Design, Member, World

from airflow_outbox.harvest.protocol.parking import Diversion, ParkedLanes
from airflow_outbox.values.pages import ID
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

_SLOW = 1.0  # seconds that a statement takes on its way
_LONGEST = 20.0


def _record(number: int) -> MarkedRecord:
    return MarkedRecord(number, "t", "k", f"v{number}", [], [], None)


async def _freed_just_then() -> World:
    world = World(1)
    world.broker.told["v1"] = Refusal(Cause.TOO_LARGE, "simulated")
    world.database.stash(_record(1))
    member = Member(world, Design(delivery="at_least_once"))
    async with asyncio.timeout(_LONGEST):
        while not world.database.state.parked:
            await asyncio.sleep(0.1)

    following = [_record(2)]

    def watch(_: Member, question: str, phase: str) -> float:
        if (question, phase) == ("discard_requested", "asked") and following:
            world.database.stash(following.pop())
        return _SLOW if phase == "asked" and question in ("discard_requested", "park") else 0.0

    world.database.statement("ask", (1,), "discard")
    world.watch = watch
    await asyncio.sleep(_LONGEST)
    await member.stop()
    return world


def _published() -> list[object]:
    return [record.value for record in seen(simulate(_freed_just_then()).broker)]


def _as_before(_: ParkedLanes, rows: Sequence[Any], refusals: Mapping[int, Refusal]) -> Diversion[Any]:
    refused = {row[ID]: refusals[row[ID]] for row in rows if row[ID] in refusals}
    return Diversion((), refused, [row[ID] for row in rows if row[ID] not in refused])


def test_it_does_not_wait_for_what_is_gone() -> None:
    assert _published() == ["v2"]


def test_it_would_wait_for_ever() -> None:
    with patch.object(ParkedLanes, "divert_again", _as_before):
        assert _published() == []
