"""Ambushes: something happens to a member, or to Postgres, at an exact moment of a member's work.

A moment is a question that a member asks a server, when it leaves the member, or when the server answers. A message
under way at that moment may be held up besides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from simulation.loop import ELSEWHERE
from simulation.network import LOST
from simulation.world import Member, World


class Strike(StrEnum):
    """A mishap of a member: it is stopped and continued, or killed, or cut off; or what is under way is lost; or
    Postgres crashes.
    """

    STOP = "stop"
    KILL = "kill"
    CUT = "cut"
    LOSE = "lose"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Moment:
    """A question, and whether it is `asked` or `answered`; or only while another one is under way `besides`,
    which takes some time then.
    """

    question: str
    phase: str
    besides: str | None = None


def _moments(*questions: str) -> tuple[Moment, ...]:
    return tuple(Moment(question, phase) for question in questions for phase in ("asked", "answered"))


_WORK = _moments(
    "read", "publish", "commit", "end", "purge_published", "heartbeat", "flush", "begin", "ledger", "fence"
)
WORK = {
    Strike.STOP: _WORK,
    Strike.KILL: _WORK,
    Strike.CUT: _WORK,
    Strike.LOSE: _moments("end", "purge_published", "heartbeat", "begin", "take_over", "commit", "publish"),
    Strike.CRASH: _moments("publish", "commit", "end", "purge_published"),
}
"""When to strike, in which way."""
BETWEEN_CLUSTERS = {
    strike: _moments("commit", "end", "note_producers", "committed_rows", "publish")
    for strike in (Strike.STOP, Strike.KILL, Strike.CUT)
}
"""When a leader may have done something on one cluster and not on another."""
RESHARDING = _moments("write_layout")
SUCCESSION = _moments("take_over", "fence", "ledger", "begin", "read", "publish", "heartbeat")
"""When to let a stopped member go on: what its successor asks."""


_BESIDES_TAKES = 0.3  # seconds


class Ambush:
    """Waits for a moment and strikes, once.

    A message under way is held up for `delay` seconds. A member that is stopped or cut off goes on when another member
    has reached `until`, or after `longest` seconds.
    """

    def __init__(
        self,
        world: World,
        *,
        at: Moment,
        strike: Strike,
        until: Moment,
        longest: float = 8.0,
        delay: float = 0.0,
        crash: Callable[[], None] = lambda: None,
    ) -> None:
        self.victim: Member | None = None
        self._world = world
        self._at = at
        self._strike = strike
        self._until = until
        self._longest = longest
        self._delay = delay
        self._crash = crash
        self.is_over = False
        self._under_way: Counter[tuple[Member, str]] = Counter()
        world.watch = self._watch

    def call_off(self) -> None:
        """Strike no more; let a victim go on."""
        self._world.watch = None
        if not self.is_over:
            self.is_over = True
            if self.victim is None:
                return
            if self._strike is Strike.STOP:
                self.victim.process.go_on()
            elif self._strike is Strike.CUT:
                for link in self.victim.links:
                    link.cut = False

    def _watch(self, member: Member, question: str, phase: str) -> float:
        self._under_way[member, question] += 1 if phase == "asked" else -1
        besides = self._at.besides
        moment = Moment(question, phase)
        if self.victim is None:
            is_now = replace(self._at, besides=None) == moment and (not besides or self._under_way[member, besides] > 0)
            if is_now and member in self._world.members and not member.process.stopped:
                self.victim = member
                self._hit(member)
                return LOST if self._strike is Strike.LOSE else self._delay
            if question == besides and phase == "asked":
                return _BESIDES_TAKES
        elif member is not self.victim and moment == self._until:
            self._world.watch = None
            asyncio.get_running_loop().call_later(self._world.network.delay(), self.call_off, context=ELSEWHERE)
        return 0.0

    def _hit(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        match self._strike:
            case Strike.STOP:
                member.process.stop()
                loop.call_later(self._longest, self.call_off, context=ELSEWHERE)
            case Strike.CUT:
                for link in member.links:
                    link.cut = True
                loop.call_later(self._longest, self.call_off, context=ELSEWHERE)
            case Strike.KILL:
                member.kill()
                self.call_off()
            case Strike.CRASH:
                loop.call_soon(self._crash, context=ELSEWHERE)
                self.call_off()
            case Strike.LOSE:
                self.call_off()
