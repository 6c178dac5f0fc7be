"""Which outboxes of a list are harvested now: those with records, as long as there are places, and in turn beyond that.

An outbox of a list *rests* while it has nothing to publish, or is *awake*: it has a connection, producers and a term of
its own. An awake one takes a place, and there are only so many. An outbox that has waited longest gets the next place.
One that has had nothing to do gives its place up: after a while, or at once where others wait. If all are busy, the one
that has been awake longest gives its place up after its turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Outbox = TypeVar("Outbox", bound=Hashable)

IDLE_WHILE_OTHERS_WAIT = 1.5
"""Seconds without a record after which an outbox gives its place to another one."""
TURN = 10.0
"""Seconds that a busy outbox keeps its place while others wait."""


@dataclass(frozen=True, slots=True)
class Awake:
    """An awake outbox: since when it is, and when it last had something to do. Times are in seconds, on one clock."""

    since: float
    busy_at: float


@dataclass(frozen=True, slots=True)
class Moves(Generic[Outbox]):
    """The outboxes to wake, and those to let rest."""

    wake: tuple[Outbox, ...] = ()
    rest: tuple[Outbox, ...] = ()


def moves(
    now: float, *, waiting: Mapping[Outbox, float], awake: Mapping[Outbox, Awake], places: int, rest_after: float
) -> Moves[Outbox]:
    """Return what to change now. `waiting` has since when each of those that rest has something to do.

    No more than `places` are awake, those to let rest included, because these take their places until they rest.
    `rest_after` is after how many seconds without a record an outbox rests.
    """
    queue = sorted(waiting, key=lambda outbox: waiting[outbox])
    free = max(0, places - len(awake))
    lacking = len(queue) - free
    idle = {outbox for outbox, it in awake.items() if now - it.busy_at >= rest_after}
    if lacking > len(idle):
        spare = [
            outbox
            for outbox, it in sorted(awake.items(), key=lambda each: each[1].busy_at)
            if outbox not in idle and now - it.busy_at >= IDLE_WHILE_OTHERS_WAIT
        ]
        done = [
            outbox
            for outbox, it in sorted(awake.items(), key=lambda each: each[1].since)
            if outbox not in idle and outbox not in spare and now - it.since >= TURN
        ]
        idle |= {*[*spare, *done][: lacking - len(idle)]}
    return Moves(tuple(queue[:free]), tuple(outbox for outbox in awake if outbox in idle))
