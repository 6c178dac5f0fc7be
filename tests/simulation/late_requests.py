"""Histories in which requests that end a Kafka transaction come late or not at all, and transactions are open longer.

The first copy of such a request may come after the client has sent it again, when the next transaction is open. A
leader may be stopped before its transaction's record is in the ledger, until a successor has read that. And what has
come of a commit may not be heard until the client gives up.
"""

from __future__ import annotations

import asyncio

from simulation.histories import History
from simulation.loop import ELSEWHERE
from simulation.network import LOST
from simulation.world import Member

_SECONDS = 20.0
_SHORTEST_STOP, _LONGEST_STOP = 5.0, 7.5  # a successor has taken over; the transaction has not timed out
_DEAF_FOR = 7.0


class LateRequests(History):
    """Requests come late, while applications write."""

    _lost = ""
    _lost_until = 0.0

    async def _disturb(self) -> None:
        self.world.watch = self._watch
        await asyncio.sleep(_SECONDS)
        self.world.watch = None
        await asyncio.sleep(_LONGEST_STOP)  # whoever is stopped goes on

    def _watch(self, member: Member, question: str, phase: str) -> float:
        loop, draw = asyncio.get_running_loop(), self.world.random.random
        if question == "end" and phase == self._lost and loop.time() < self._lost_until:
            return LOST
        if phase != "asked" or member.process.stopped:
            return 0.0
        luck = draw()
        if question == "publish":
            return 0.3 * luck
        if question == "end" and luck < 0.15:  # the client sends it again after two seconds
            return 2 + 2 * draw()
        if question == "end" and luck < 0.25:
            self._lost, self._lost_until = self.world.random.choice(("asked", "answered")), loop.time() + _DEAF_FOR
        if question == "commit" and luck < 0.2:
            member.process.stop()
            longest = _LONGEST_STOP - _SHORTEST_STOP
            loop.call_later(_SHORTEST_STOP + longest * draw(), member.process.go_on, context=ELSEWHERE)
            return _SHORTEST_STOP + longest * draw()
        return 0.0
