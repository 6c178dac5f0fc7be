"""A proxy on loopback that understands Kafka's frames, and mistreats single requests: it drops, delays, holds and
doubles them, cuts their connection, or delivers them late.

A *rule* is asked about each request that comes and says how to treat it, or nothing. Every request so treated is a
*strike*. *Late* is what a network can do and a byte proxy can't play: the request is held, the client loses its
connection at once, connects again and repeats the request; the first copy then reaches the broker on its old
connection, at a moment that the rule chooses.

The proxy runs in a thread of its own, and rules are asked there. `seen` has every request that came, in order.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from faults.frames import Api, Frames, Request, correlation_id_of, error_in, read_request

Result = TypeVar("Result")

Step = tuple[Api, int]
"""So many requests of a kind that have to be answered."""

NEXT_TRANSACTION: tuple[Step, ...] = ((Api.END, 1), (Api.PRODUCE, 3))
"""The client's own copy of EndTxn has ended the transaction, and the next one of that id has produced three times."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The broker never gets it, and the client waits for an answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is cut: before the broker gets the request, or when its answer comes."""

    answered: bool


@dataclass(frozen=True, slots=True)
class Twice:
    """The broker gets it twice, one copy right after the other; the client hears the first answer."""


@dataclass(frozen=True, slots=True)
class Delay:
    """It waits, and with it what comes after it on its connection."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits, and with it what comes after it on its connection, until it is delivered."""


@dataclass(frozen=True, slots=True)
class Late:
    """The client's side of its connection is cut, and the broker gets it on the old connection when, one step after the
    other, so many requests of the same transactional id are answered without an error. Without steps it waits until
    `Mistreatment.deliver`.
    """

    after: tuple[Step, ...] = ()


Treatment = Drop | Cut | Twice | Delay | Hold | Late
Rule = Callable[[Request], Treatment | None]


class Mistreatment:
    """A request that was mistreated."""

    def __init__(self, request: Request, treatment: Treatment, wire: _Wire, frame: bytes) -> None:
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
        self.on_strike: Callable[[], None] = lambda: None
        self.faults: list[Fault] = []
        self.wires: set[_Wire] = set()
        self._connections = 0
        self._waiting: list[Mistreatment] = []  # late ones that a moment is to come for
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="frame proxy", daemon=True)
        self._thread.start()
        listening = self._loop.create_server(lambda: _Wire(self).client, "127.0.0.1", port)
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
        """Forget all rules. What waits arrives, what is late too."""

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

    def treatment_of(self, wire: _Wire, request: Request, frame: bytes) -> Mistreatment | None:
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
        for strike in [strike for strike in self._waiting if strike.watch(request)]:
            self._waiting.remove(strike)
            strike.deliver()


class _End(asyncio.Protocol):
    """One end of a wire."""

    def __init__(self, connected: Callable[[], None], arrived: Callable[[bytes | None], None]) -> None:
        self._connected = connected
        self._arrived = arrived
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connected()

    def data_received(self, data: bytes) -> None:
        self._arrived(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self._arrived(None)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@dataclass(slots=True)
class _Waiting:
    """What is on its way to the broker: a frame, or the end of the connection."""

    due: float
    frame: bytes | None
    strike: Mistreatment | None


class _Wire:
    """A client's connection, and the one to the broker that belongs to it."""

    def __init__(self, proxy: FrameProxy) -> None:
        self.proxy = proxy
        self.client = _End(self._opened, self._asked)
        self._broker = _End(self._forward, self._answered)
        self._number = proxy.number()
        self._requests, self._answers = Frames(), Frames()
        self._on_the_way: deque[_Waiting] = deque()
        self._open: dict[int, tuple[Request, Mistreatment | None]] = {}  # by correlation id: sent, and not answered
        self._unheard: set[int] = set()  # correlation ids whose next answer the client must not hear
        self._is_late = False  # the client has lost it, the broker has not
        self._held: list[Mistreatment] = []
        self._connecting: asyncio.Task[None] | None = None

    def _opened(self) -> None:
        self.proxy.wires.add(self)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._broker, "127.0.0.1", self.proxy.target)
        except OSError:
            self.cut()

    def _asked(self, data: bytes | None) -> None:
        if data is None:
            if not self._is_late:
                self._send(None)
            return
        for frame in self._requests.add(data):
            request = read_request(frame, connection=self._number, at=time.monotonic())
            strike = self.proxy.treatment_of(self, request, frame)
            self._treat(request, frame, strike)
            if self.client.transport is None or self.client.transport.is_closing():
                return  # what came after it is lost with the connection

    def _treat(self, request: Request, frame: bytes, strike: Mistreatment | None) -> None:
        match None if strike is None else strike.treatment:
            case Drop():
                assert strike is not None
                strike.delivered.set()  # as far as it ever is
            case Cut(answered=False):
                assert strike is not None
                strike.delivered.set()
                self.cut()
            case Late():
                assert strike is not None
                self._is_late = True
                self._held.append(strike)
                self.client.abort()
            case Delay(seconds=seconds):
                self._open[request.correlation_id] = request, strike
                self._send(frame, strike, asyncio.get_running_loop().time() + seconds)
            case Hold():
                self._open[request.correlation_id] = request, strike
                self._send(frame, strike, math.inf)
            case _:
                self._open[request.correlation_id] = request, strike
                self._send(frame, strike)

    def _send(self, frame: bytes | None, strike: Mistreatment | None = None, due: float = 0.0) -> None:
        last = self._on_the_way[-1].due if self._on_the_way else 0.0
        self._on_the_way.append(_Waiting(max(due, last), frame, strike))
        if self._on_the_way[-1].due == 0.0:
            self._forward()
        elif self._on_the_way[-1].due < math.inf:
            asyncio.get_running_loop().call_at(self._on_the_way[-1].due, self._forward)

    def _forward(self) -> None:
        """Pass on what is due."""
        now = asyncio.get_running_loop().time()
        while self._on_the_way and self._on_the_way[0].due <= now and self._broker.transport is not None:
            waiting = self._on_the_way.popleft()
            if waiting.frame is None:
                self._broker.transport.write_eof()  # and no reset, so that the broker still does what it was asked
                continue
            self._broker.transport.write(waiting.frame)
            if waiting.strike is not None:
                if isinstance(waiting.strike.treatment, Twice):
                    self._unheard.add(waiting.strike.request.correlation_id)
                    self._broker.transport.write(waiting.frame)
                waiting.strike.delivered.set()

    def _answered(self, data: bytes | None) -> None:
        if data is None:
            if self.client.transport is not None:
                self.client.transport.close()
            self.proxy.wires.discard(self)
            return
        for answer in self._answers.add(data):
            number = correlation_id_of(answer)
            request, strike = self._open.pop(number, (None, None))
            if request is None:
                if number not in self._unheard and self.client.transport is not None:
                    self.client.transport.write(answer)
                self._unheard.discard(number)
                continue
            if strike is not None:
                strike.answered.set()
                if isinstance(strike.treatment, Cut):
                    self.cut()
                    return
            if self.client.transport is not None:
                self.client.transport.write(answer)
            if self._is_late and strike is not None:
                self._broker.abort()
            if not self._is_late and error_in(answer, request) == 0:
                self.proxy.answered(request)

    def deliver(self, strike: Mistreatment) -> None:
        if strike in self._held:
            self._held.remove(strike)
            self._open[strike.request.correlation_id] = strike.request, strike
            self._send(strike.frame, strike)
        for waiting in self._on_the_way:
            if waiting.strike is strike:
                waiting.due = 0.0
        if all(waiting.strike is None or waiting.due < math.inf for waiting in self._on_the_way):
            self._release()
        self._forward()

    def heal(self) -> None:
        for strike in list(self._held):
            self.deliver(strike)
        self._release()
        self._forward()

    def _release(self) -> None:
        for waiting in self._on_the_way:
            waiting.due = 0.0

    def cut(self) -> None:
        self.client.abort()
        self._broker.abort()
        self._on_the_way.clear()
        if self._connecting is not None:
            self._connecting.cancel()
        self.proxy.wires.discard(self)


def of(requests: Sequence[Request], api: Api, transactional_id: str | None = None) -> list[Request]:
    """Those of a kind, and of a transactional id if one is given."""
    return [
        request for request in requests if request.api == api and transactional_id in (None, request.transactional_id)
    ]
