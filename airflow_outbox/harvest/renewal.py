"""A harvest goes on by a new login: a password, an address or a certificate may change while it runs.

While a server can't be reached, or refuses the login, a process that harvests says so by the event `unreached`. Whoever
has configured it then reads the configuration again: the command its file, Airflow's trigger the connections. If that
has changed, or a file that it names, the harvest starts again by it. Otherwise the process goes on trying.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_outbox.harvest.ports import Events

READ_INTERVAL = 5.0
"""Seconds between two readings, while something can't be reached."""


class Unreached:
    """Says that a server can't be reached, and why; at most every five seconds."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._said_at = -math.inf

    def __call__(self, error: str) -> None:
        if (now := time.monotonic()) >= self._said_at + READ_INTERVAL:
            self._said_at = now
            self._events("unreached", error=error)


def fingerprint(settings: object) -> object:
    """Return something that differs when settings, or files that they name, such as certificates, have changed."""
    if isinstance(settings, Mapping):
        return {name: (fingerprint(value), _state_of_file(name, value)) for name, value in settings.items()}
    return type(settings) if callable(settings) else settings


def _state_of_file(setting: Any, value: object) -> object:
    """When and how large a file is that a setting of Kafka's client names; the client reads it only when it starts."""
    if not (isinstance(value, str) and str(setting).endswith((".location", ".keytab"))):
        return None
    try:
        state = Path(value).stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size
