"""A client's connection through the frame proxy, and what becomes of the requests on it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faults.frames import Frames, Request, correlation_id_of, error_in, read_request, refusal_of
from faults.treatments import Cut, Delay, Drop, Hold, Late, Refuse, Twice

if TYPE_CHECKING:
    from faults.frame_proxy import FrameProxy, Mistreatment


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
    """Something on its way to the broker: a frame, or the end of the connection."""

    due: float
    frame: bytes | None
    strike: Mistreatment | None


class Wire:
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
            case Refuse(code=code, topic=topic):
                assert strike is not None
                strike.delivered.set()
                if self.client.transport is not None:
                    self.client.transport.write(refusal_of(frame, code, topic))
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
