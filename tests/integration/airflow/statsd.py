"""A UDP port where Airflow's stats arrive, in InfluxDB's notation: `airflow.outbox.backlog,outbox=a:7|g`."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import Self

_SO_RCVBUFFORCE = 33  # Linux


@dataclass(frozen=True, slots=True)
class Stat:
    """One value. `kind` is `g` for a gauge, `c` for a counter."""

    name: str
    tags: tuple[tuple[str, str], ...]
    value: float
    kind: str

    @classmethod
    def parse(cls, line: str) -> Self:
        names, _, value = line.rpartition(":")
        name, *tags = names.split(",")
        number, _, kind = value.partition("|")
        return cls(
            name, tuple(sorted((tag.partition("=")[0], tag.partition("=")[2]) for tag in tags)), float(number), kind
        )


class StatsdListener:
    """Listens until closed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):  # only root may have so much room, for what comes while nobody listens
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 * 1024 * 1024)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._found: list[Stat] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def of(self, outbox: str) -> list[Stat]:
        """The metrics of an outbox that came so far."""
        return [stat for stat in [*self._found] if ("outbox", outbox) in stat.tags]

    def close(self) -> None:
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                packet = self._socket.recv(65536)
            except OSError:  # closed
                return
            self._found += [Stat.parse(line) for line in packet.decode().splitlines() if ".outbox." in line]
