"""A proxy on loopback that understands Kafka's frames, and mistreats single requests: it drops, delays, holds and
doubles them, cuts their connection, or delivers them late.

A *rule* is asked about each request that comes and says how to treat it, or nothing. Every request so treated is a
*strike*. *Late* is what a network can do and a byte proxy can't play: the request is held, the client loses its
connection at once, connects again and repeats the request; the first copy then reaches the broker on its old
connection, at a moment that the rule chooses.

The proxy runs in a thread of its own, and rules are asked there. `seen` has every request that came, in order, and
`taken` those that were answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from faults.frame_wire import Wire
from faults.frames import Api, Request
from faults.treatments import Late, Rule, Treatment

Result = TypeVar("Result")


class Mistreatment:
    """A request that was mistreated."""

    def __init__(self, request: Request, treatment: Treatment, wire: Wire, frame: bytes) -> None:
        self.request = request
        self.treatment = treatment
        self.delivered = threading.Event()  # the broker has it, for the last time if more than once
        self.answered = threading.Event()  # the broker has answered that
        self._wire = wire
        self.frame = frame
        self._steps = deque(treatment.after) if isinstance(treatment, Late) else deque()

    def deliver(self) -> None:
        """Let the broker have what is held or late."""
        self._wire.proxy.do(lambda: self._wire.deliver(self))

    def watch(self, answered: Request) -> bool:
        """Whether this is the moment to deliver it."""
        if not self._steps or self.delivered.is_set() or answered.transactional_id != self.request.transactional_id:
            return False
        api, count = self._steps[0]
        if answered.api != api:
            return False
        if count > 1:
            self._steps[0] = api, count - 1
        else:
            self._steps.popleft()
        return not self._steps


@dataclass(slots=True, eq=False)
class Fault:
    """A rule at work."""

    rule: Rule
    strikes: list[Mistreatment] = field(default_factory=list)
    struck: threading.Event = field(default_factory=threading.Event)

    @property
    def delivered(self) -> int:
        """How many of its strikes have reached the broker."""
        return sum(strike.delivered.is_set() for strike in self.strikes)


class FrameProxy:
    """Forwards connections to `port` on 127.0.0.1, a free one unless given, to `target`, another port there."""

    def __init__(self, target: int, *, port: int = 0) -> None:
        self.target = target
        self.seen: list[Request] = []
        self.taken: list[Request] = []  # those that were answered without an error
        self.on_strike: Callable[[], None] = lambda: None
        self.faults: list[Fault] = []
        self.wires: set[Wire] = set()
        self._connections = 0
        self._waiting: list[Mistreatment] = []  # late ones that a moment is to come for
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="frame proxy", daemon=True)
        self._thread.start()
        listening = self._loop.create_server(lambda: Wire(self).client, "127.0.0.1", port)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def mistreat(self, rule: Rule) -> Fault:
        """Ask a rule about every request from now on."""
        fault = Fault(rule)
        self.do(lambda: self.faults.append(fault))
        return fault

    def strike(
        self, api: Api, treatment: Treatment, *, times: float = 1, where: Callable[[Request], bool] = lambda _: True
    ) -> Fault:
        """Mistreat the next requests of a kind, `times` of them: the next only when the last has reached the broker,
        so that a client's copy of a late one is not late as well.
        """

        def rule(request: Request) -> Treatment | None:
            waits = any(not strike.delivered.is_set() for strike in fault.strikes)
            chosen = request.api == api and len(fault.strikes) < times and not waits and where(request)
            return treatment if chosen else None

        fault = Fault(rule)
        self.do(lambda: self.faults.append(fault))
        return fault

    def heal(self) -> None:
        """Forget all rules. Waiting and late frames arrive."""

        def heal() -> None:
            self.faults.clear()
            self._waiting.clear()
            for wire in list(self.wires):
                wire.heal()

        self.do(heal)

    def close(self) -> None:
        """End all connections and the thread."""

        def close() -> None:
            self._server.close()
            for wire in list(self.wires):
                wire.cut()
            self._loop.call_soon(self._loop.stop)

        self.do(close)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def do(self, act: Callable[[], Result]) -> Result:
        """Have something done in the proxy's thread."""
        if threading.current_thread() is self._thread:
            return act()

        async def acting() -> Result:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result()

    def number(self) -> int:
        self._connections += 1
        return self._connections

    def treatment_of(self, wire: Wire, request: Request, frame: bytes) -> Mistreatment | None:
        """The strike of the first rule that has something to say."""
        self.seen.append(request)
        for fault in self.faults:
            treatment = fault.rule(request)
            if treatment is not None:
                strike = Mistreatment(request, treatment, wire, frame)
                fault.strikes.append(strike)
                self.on_strike()
                fault.struck.set()
                if isinstance(treatment, Late) and treatment.after:
                    self._waiting.append(strike)
                return strike
        return None

    def answered(self, request: Request) -> None:
        """To be called when a request was answered without an error."""
        self.taken.append(request)
        for strike in [strike for strike in self._waiting if strike.watch(request)]:
            self._waiting.remove(strike)
            strike.deliver()
