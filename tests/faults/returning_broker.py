"""A broker that was killed is back, and records come again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from faults.load import IMPATIENT
from faults.scene import Scene
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


def comes_back(scene: Scene, kill: Callable[[], None], *, away: float) -> float:
    """Kill the broker by `kill` under load, and start it `away` seconds later. How many seconds it takes from its
    return until the first record comes.
    """
    scene.midway()
    kill()
    time.sleep(away)
    starting = threading.Thread(target=scene.servers.kafka.start)
    starting.start()
    returned_at = _wait_for_the_broker(scene.servers.kafka)
    took = scene.reader.first_since(returned_at, within=PATIENCE) - returned_at
    starting.join()
    return took


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
