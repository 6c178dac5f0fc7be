"""Requests for missing topics, in the way that makes brokers create them, if they do that on demand."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from confluent_kafka import Producer

from airflow_outbox.harvest.kafka.errors import CLIENT_ERRORS, REFUSALS
from airflow_outbox.harvest.kafka.settings import shared

logger = logging.getLogger(__name__)

_ASKING_TIME = 5.0
_A_SECOND = 50
_MOST_WAITING = 1_000  # the others are asked for when their records are tried again


class TopicRequests:
    """Asks for topics, now or in its own thread. Never raises: a look-up tells whether a topic is there."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` are a producer's: brokers create nothing for consumers and others."""
        self._settings: dict[str, Any] = shared(settings)
        self._waiting: dict[str, None] = {}
        self._lock = threading.Lock()
        self._is_at_work = False

    def now(self, names: Collection[str]) -> None:
        """Ask for a few topics, with a new client: a client remembers each topic that it was ever asked for."""
        with contextlib.suppress(*REFUSALS, *CLIENT_ERRORS):
            client = Producer({**self._settings, "error_cb": lambda _: None}, logger=logger)
            for name in names:
                client.list_topics(name, _ASKING_TIME)

    def later(self, names: Collection[str]) -> None:
        """Ask in the background, for some topics a second, until all are asked for."""
        with self._lock:
            for name in names:
                if len(self._waiting) >= _MOST_WAITING:
                    break
                self._waiting[name] = None
            if self._is_at_work or not self._waiting:
                return
            self._is_at_work = True
        threading.Thread(target=self._work, name="outbox-topics", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                names = list(islice(self._waiting, _A_SECOND))
                for name in names:
                    del self._waiting[name]
                self._is_at_work = bool(names)
            if not names:
                return
            self.now(names)
            time.sleep(1)
