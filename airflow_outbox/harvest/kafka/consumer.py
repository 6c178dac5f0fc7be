"""Consumers that read the outbox's own topics between known offsets, and belong to no group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.errors import REFUSALS, refused_settings
from airflow_outbox.harvest.kafka.settings import of_consumer

logger = logging.getLogger(__name__)

_LONGEST_FETCH_MS = 10  # an empty fetch shows that the end is reached, and somebody waits for it


def new_consumer(
    config: HarvestConfig, *, on_error: Callable[[BrokerError], None], more: Mapping[str, int] | None = None
) -> Consumer:
    """Return a consumer of committed records, which also tells where a partition ends. `more` are further settings.

    Raises KafkaError for settings that the client refuses.
    """
    settings = {
        **of_consumer(config.kafka, config.kafka_consumer),
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": _LONGEST_FETCH_MS,
        **(more or {}),
        "error_cb": on_error,
    }
    try:
        return Consumer(settings, logger=logger)
    except REFUSALS as error:
        raise refused_settings(error, settings, remedy="Correct kafka_consumer or kafka") from error
