"""A TCP proxy on loopback that misbehaves when told to: it cuts, delays, holds back and swallows.

It runs in a thread of its own. A rule applies to the connections whose first bytes contain a text (Postgres' start-up
packet names the application; b"" means all), to those that are there and to those that come, from their next request
of a `kind` on, until `heal`. Data that a connection has lost stays lost: one that was half-open never works again.

Each rule comes with an event that is set when it first strikes. Before that, `on_hit` is called: the proxy stands
still meanwhile, so that a test can see what a fault strikes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

Result = TypeVar("Result")

_OPENING = 1024  # bytes of a connection's beginning that rules look at


class Way(Enum):
    """The two directions of a connection."""

    REQUESTS = "from the client"
    REPLIES = "from the server"


BOTH = (Way.REQUESTS, Way.REPLIES)


Kind = Callable[[bytes], bool]
"""Whether bytes from a client are a request of some kind."""


def any_request(_: bytes) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """Strikes a connection at its first request of a kind, and is in force there from then on."""

    opening: bytes
    kind: Kind
    hit: threading.Event = field(default_factory=threading.Event, init=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Latency(_Rule):
    seconds: float
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Loss(_Rule):
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Cut(_Rule):
    before: bool


class Proxy:
    """Forwards connections to `port` on 127.0.0.1 to `target`, another port there."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.on_hit: Callable[[], None] = lambda: None
        self._rules: list[_Rule] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        listening = self._loop.create_server(lambda: _Link(self).client, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def connections(self, opening: bytes = b"") -> int:
        """How many there are and work."""
        return self._do(lambda: sum(not link.is_lost for link in self._matching(opening)))

    def cut(self, opening: bytes = b"") -> int:
        """End connections by a reset on both sides; how many there were."""

        def cut() -> int:
            links = self._matching(opening)
            for link in links:
                link.cut()
            return len(links)

        return self._do(cut)

    def delay(self, seconds: float, opening: bytes = b"", *, kind: Kind = any_request) -> threading.Event:
        """Let everything arrive so much later, each way."""
        return self._add(_Latency(opening, kind, seconds, BOTH))

    def hold(self, opening: bytes = b"", *, kind: Kind = any_request) -> threading.Event:
        """Let no request arrive before `heal`; then all do, also those of connections that the sender has ended."""
        return self._add(_Latency(opening, kind, math.inf, (Way.REQUESTS,)))

    def swallow(
        self, opening: bytes = b"", *, kind: Kind = any_request, ways: tuple[Way, ...] = BOTH
    ) -> threading.Event:
        """Accept and lose everything, the ends of connections too: they are half-open."""
        return self._add(_Loss(opening, kind, ways))

    def cut_at(self, opening: bytes = b"", *, kind: Kind = any_request, before: bool) -> threading.Event:
        """Cut one connection at its next request: `before` it reaches the server, or when the reply comes."""
        return self._add(_Cut(opening, kind, before))

    def heal(self) -> None:
        """Forget all rules. Data held back arrives; a half-open connection stays so for its client."""

        def heal() -> None:
            self._rules.clear()
            for link in list(self._links):
                link.heal()

        self._do(heal)

    def close(self) -> None:
        """End all connections and the thread."""

        def close() -> None:
            self._server.close()
            for link in list(self._links):
                link.cut()
            self._loop.call_soon(self._loop.stop)

        self._do(close)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, rule: _Rule) -> threading.Event:
        self._do(lambda: self._rules.append(rule))
        return rule.hit

    def _do(self, act: Callable[[], Result]) -> Result:
        async def acting() -> Result:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result()

    def strikes(self, rule: _Rule) -> None:
        """To be called when a rule has an effect."""
        if not rule.hit.is_set():
            self.on_hit()
            rule.hit.set()

    def _matching(self, opening: bytes) -> list[_Link]:
        return [link for link in self._links if opening in link.opening]


class _End(asyncio.Protocol):
    """One end of a link: the connection of the client, or the one to the server."""

    def __init__(self, link: _Link, way: Way) -> None:
        self._link = link
        self._way = way
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.connected(self._way)

    def data_received(self, data: bytes) -> None:
        self._link.arrived(self._way, data)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self._link.arrived(self._way, None)


class _Link:
    """A client's connection, and the one to the server that belongs to it. `None` stands for a connection's end."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.opening = b""
        self.client = _End(self, Way.REQUESTS)
        self._server = _End(self, Way.REPLIES)
        self._on_the_way: dict[Way, deque[tuple[float, bytes | None]]] = {way: deque() for way in Way}
        self._lost: set[Way] = set()
        self._struck_by: list[_Rule] = []
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        return bool(self._lost)

    def connected(self, way: Way) -> None:
        if way is Way.REQUESTS:
            self._proxy._links.add(self)
            self._connecting = asyncio.ensure_future(self._connect())
        else:
            self._forward(Way.REQUESTS)

    async def _connect(self) -> None:
        try:
            await self._proxy._loop.create_connection(lambda: self._server, "127.0.0.1", self._proxy._target)
        except OSError:
            self.cut()

    def arrived(self, way: Way, data: bytes | None) -> None:
        if way is Way.REQUESTS and data is not None:
            if len(self.opening) < _OPENING:
                self.opening += data
            self._strike(data)
        cuts = [rule for rule in self._struck_by if isinstance(rule, _Cut)]
        losses = [rule for rule in self._struck_by if isinstance(rule, _Loss) and way in rule.ways]
        if way in self._lost or losses:
            self._lost.add(way)
        elif any(rule.before == (way is Way.REQUESTS) for rule in cuts):
            self.cut()
            self._proxy.strikes(cuts[0])
        else:
            self._send_later(way, data)

    def _strike(self, request: bytes) -> None:
        for rule in list(self._proxy._rules):
            if rule not in self._struck_by and rule.opening in self.opening and rule.kind(request):
                self._struck_by.append(rule)
                if isinstance(rule, _Cut):
                    self._proxy._rules.remove(rule)  # one connection, once
                else:
                    self._proxy.strikes(rule)

    def _send_later(self, way: Way, data: bytes | None) -> None:
        latency = sum(rule.seconds for rule in self._struck_by if isinstance(rule, _Latency) and way in rule.ways)
        waiting = self._on_the_way[way]
        due = max(self._proxy._loop.time() + latency, waiting[-1][0] if waiting else 0.0)
        waiting.append((due, data))
        if latency == 0.0:
            self._forward(way)
        elif latency < math.inf:
            self._proxy._loop.call_at(due, self._forward, way)

    def _forward(self, way: Way) -> None:
        """Pass on what is due."""
        to = self._server if way is Way.REQUESTS else self.client
        waiting = self._on_the_way[way]
        if to is self.client and to.transport is None:
            waiting.clear()
        while waiting and waiting[0][0] <= self._proxy._loop.time() and to.transport is not None:
            _, data = waiting.popleft()
            if data is None and to is self._server and to.transport.can_write_eof():
                to.transport.write_eof()  # and no reset, so that the server still does what it was asked
            elif data is None:
                to.transport.close()
            else:
                to.transport.write(data)
        self._forget_if_over()

    def heal(self) -> None:
        self._struck_by.clear()
        if self._lost:
            if self._server.transport is not None:
                self._server.transport.abort()
            self._lost = set(Way)
        for way, waiting in self._on_the_way.items():
            for place, (_, data) in enumerate(waiting):
                waiting[place] = (0.0, data)
            self._forward(way)

    def cut(self) -> None:
        for end in (self.client, self._server):
            if end.transport is not None:
                end.transport.abort()
        for waiting in self._on_the_way.values():
            waiting.clear()
        if self._connecting is not None:
            self._connecting.cancel()
        self._proxy._links.discard(self)

    def _forget_if_over(self) -> None:
        if self.client.transport is None and self._server.transport is None:
            with contextlib.suppress(KeyError):
                self._proxy._links.remove(self)
