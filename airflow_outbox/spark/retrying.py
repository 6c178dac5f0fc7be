"""Wait for a Postgres that restarts, which usually takes seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_outbox.errors import LoginRefusedError, PostgresUnreachableError

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0

T = TypeVar("T")


def patiently(attempt: Callable[[], T]) -> T:
    """Try again for a minute while Postgres can't be reached; the log says so. Raises any other error of `attempt`.

    The attempt must have one effect, however often it is begun.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return attempt()
        except LoginRefusedError:
            raise
        except PostgresUnreachableError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("%s; trying again", error)
            time.sleep(_PAUSE_SECONDS)
