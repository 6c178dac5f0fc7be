"""A relay to a server on 127.0.0.1: all bytes arrive later, as over a long network. However many are under way, none
waits for others.

It runs in a process of its own, which prints the port to connect to, and ends with its stdin.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_outbox.demo.embedded.ports import LOOPBACK
from benchmarks.peers.servers import ROOT


@dataclass(frozen=True, slots=True)
class Relay:
    """Its process, and the port to connect to."""

    pid: int
    port: int


@contextmanager
def relayed(target: int, *, seconds: float) -> Iterator[Relay]:
    """A relay to this port of 127.0.0.1. Bytes take so many seconds each way."""
    command = [sys.executable, "-m", "benchmarks.scaled.relay", str(target), f"--seconds={seconds}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Relay(process.pid, int(process.stdout.readline()))
        process.stdin.close()


class _End(asyncio.Protocol):
    """One end of a connection: `other` says later what this one hears."""

    def __init__(self, seconds: float, *, target: int | None = None, other: _End | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self._seconds = seconds
        self._target = target
        self._other = other or _End(seconds, other=self)
        self._heard: deque[tuple[float, bytes | None]] = deque()  # None: the end of the connection
        self._connecting: asyncio.Task[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._target is None:
            self._other.pass_on()
        else:
            self._connecting = asyncio.ensure_future(self._connect(self._target))

    async def _connect(self, target: int) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._other, LOOPBACK, target)
        except OSError:
            assert self.transport is not None
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._say_later(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._say_later(None)

    def _say_later(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        self._heard.append((due, data))
        loop.call_at(due, self.pass_on)

    def pass_on(self) -> None:
        """Say what is due, once the other end is connected."""
        to, now = self._other.transport, asyncio.get_running_loop().time()
        while to is not None and self._heard and self._heard[0][0] <= now:
            _, data = self._heard.popleft()
            if data is None:
                to.close()
            else:
                to.write(data)


async def _relay(target: int, seconds: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _End(seconds, target=target), LOOPBACK, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=int, help="the server's port")
    parser.add_argument("--seconds", type=float, required=True, help="how long bytes take each way")
    given = parser.parse_args()
    asyncio.run(_relay(given.target, given.seconds))


if __name__ == "__main__":
    main()
