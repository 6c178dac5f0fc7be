"""The simulated network: a question takes time on its way to a server, and the answer on its way back.

In *trouble*, any of it may fail, and whoever asked can't tell in which way: the question is lost, or the answer; or
the client gives up first, and the question takes effect later, perhaps long after the client's process has died. A
link that is *cut* lets nothing through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.loop import ELSEWHERE

Effect = Callable[["Answer"], None]
"""The work of a question at the server, which answers some time."""
Watch = Callable[[str, str], float]
"""Told the name of every question, and what comes of it: `asked`, `answered`; how much longer to let it travel."""

LOST = float("inf")
_LATE = 15.0  # the latest that a question whose client gave up takes effect, in seconds
_DELAYS = (1, 1, 1, 1, 2, 5)  # in latencies


@dataclass(slots=True)
class Network:
    """`trouble` is the probability that a question fails; `latency` is in seconds."""

    random: random.Random
    trouble: float = 0.0
    latency: float = 0.005

    def delay(self) -> float:
        """How long a message travels: mostly below `latency`, in trouble sometimes up to 200 times that."""
        draw = self.random.random
        if self.trouble and draw() < 0.1:
            return self.latency * 200 * draw()
        return self.latency * _DELAYS[int(draw() * 6)] * draw()

    def unlucky(self) -> bool:
        return self.trouble > 0 and self.random.random() < self.trouble


class Answer:
    """A server's way to answer a question, once, whenever it likes."""

    __slots__ = ("_future", "_link", "_lost", "_name")

    def __init__(self, link: Link, name: str, future: asyncio.Future[Any], *, lost: bool) -> None:
        self._link = link
        self._name = name
        self._future = future
        self._lost = lost

    def give(self, value: object = None) -> None:
        self._send(self._settle, value)

    def refuse(self, error: Exception) -> None:
        self._send(self._fail, error)

    def _send(self, arrive: Callable[[Any], None], value: object) -> None:
        link = self._link
        longer = link.watch(self._name, "answered")
        if not self._lost and not link.cut and longer < LOST:
            asyncio.get_running_loop().call_later(link.network.delay() + longer, arrive, value, context=ELSEWHERE)

    def _settle(self, value: object) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Link:
    """A process' way to a server. A question without an answer fails with `unreachable`, after `patience` seconds."""

    def __init__(self, network: Network, unreachable: Callable[[str], Exception], *, patience: float) -> None:
        self.network = network
        self.cut = False
        self.watch: Watch = lambda name, phase: 0.0
        self._unreachable = unreachable
        self._patience = patience

    async def ask(self, name: str, effect: Effect, *, patience: float | None = None) -> Any:
        network, loop = self.network, asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        longer = self.watch(name, "asked")
        there, lost, patience = network.delay() + longer, False, patience or self._patience
        if self.cut or longer == LOST:
            there, patience = -1.0, patience * network.random.random()
        elif network.unlucky():
            patience = min(patience, 3 * network.random.random())
            match network.random.randrange(4):
                case 0:  # the question is lost
                    there = -1.0
                case 1:  # the answer is lost
                    lost = True
                case 2:  # the client gives up too early
                    there, lost = patience + _LATE * network.random.random(), True
                case _:  # the client may give up before, or after
                    there = 1.1 * patience * network.random.random()
        if there >= 0:
            loop.call_later(there, effect, Answer(self, name, future, lost=lost), context=ELSEWHERE)
        timer = loop.call_later(patience, self._give_up, future, name)
        try:
            return await future
        finally:
            timer.cancel()

    def _give_up(self, future: asyncio.Future[Any], name: str) -> None:
        if not future.done():
            future.set_exception(self._unreachable(f"simulated: no answer to {name}"))
