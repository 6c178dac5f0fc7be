"""The limits of a configuration are those of Kafka's clients."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.transactional_client import transactional_settings


def config(**limits: float) -> HarvestConfig:
    settings: dict[str, Any] = {"data_source": "", "kafka": {"bootstrap.servers": "localhost:9092"}, "limits": limits}
    return HarvestConfig.validated(settings, source="the test")


def test_a_record_is_given_up_after_the_delivery_timeout() -> None:
    assert producer_settings(config(delivery_timeout=4))["delivery.timeout.ms"] == 4_000


@pytest.mark.parametrize(
    ("limits", "delivery"),
    [({"delivery_timeout": 4, "transaction_timeout": 20}, 4_000), ({"transaction_timeout": 20}, 20_000)],
    ids=["before its transaction", "with its transaction"],
)
def test_a_record_is_given_up_at_the_latest_with_its_transaction(limits: dict[str, float], delivery: int) -> None:
    settings = transactional_settings(config(**limits), "an id")
    assert settings["transaction.timeout.ms"] == 20_000
    assert settings["delivery.timeout.ms"] == delivery
    assert settings["socket.timeout.ms"] < settings["transaction.timeout.ms"]
