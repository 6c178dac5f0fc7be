"""A broker that was killed is back: how long it takes until records come again."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from faults.load import IMPATIENT
from faults.scene import Scene
from support.harvesting import BUSY, PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

_BACK_WITHIN = 3.0 + BUSY
"""Seconds. What goes by the client's own pauses takes ten."""
_TRIES = 3
"""Times that the broker is killed, at most: a busy machine only adds to what it takes."""


def comes_back_soon(scene: Scene, kill: Callable[[], None], *, away: float) -> None:
    """Kill the broker by `kill` under load, and start it `away` seconds later: in one of three times the first record
    comes soon.
    """
    took: list[float] = []
    while len(took) < _TRIES and min(took, default=math.inf) > _BACK_WITHIN:
        scene.midway()
        kill()
        time.sleep(away)
        starting = threading.Thread(target=scene.servers.kafka.start)
        starting.start()
        returned_at = _wait_for_the_broker(scene.servers.kafka)
        took.append(scene.reader.first_since(returned_at, within=PATIENCE) - returned_at)
        starting.join()
    assert min(took) <= _BACK_WITHIN, f"{took}\n{scene.story()}"


def _wait_for_the_broker(kafka: EmbeddedKafka) -> float:
    """When a broker that is starting serves a plain producer of transactions, on the system's clock.

    It answers a little sooner; on a busy machine it then takes seconds to load what it has to know for that.
    """
    while True:
        client = AdminClient({"bootstrap.servers": kafka.bootstrap, **IMPATIENT})
        with contextlib.suppress(KafkaException):
            if client.list_topics(timeout=0.3).brokers:
                break
    plain = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "probe", **IMPATIENT}
    Producer(plain).init_transactions(PATIENCE)
    return time.time()
