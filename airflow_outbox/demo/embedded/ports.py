"""Ports on the loopback interface that a server can keep."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from airflow_outbox.errors import OutboxError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
_USUAL_EPHEMERAL_START = 32_768


class NoPortError(OutboxError):
    """No free port was found on 127.0.0.1. End servers that you no longer need."""


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on. No process gets it a second time while this process lives.

    It lies below the range from which the kernel draws ports for outgoing connections. From that range, a client that
    tries to reach a stopped server could be given the server's own port, and the server could not come back.

    This process keeps a socket bound to the port. Servers can still listen there, because they set `SO_REUSEADDR`.
    """
    candidates = range(_LOWEST, max(_ephemeral_start(), _LOWEST + 10_000))
    for port in random.sample(candidates, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))  # fails where another process keeps the port: it does not set the option
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.detach()
            return port
    raise NoPortError


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _USUAL_EPHEMERAL_START
