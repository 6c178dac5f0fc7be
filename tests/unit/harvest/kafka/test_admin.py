"""A cluster's client: what it has complained of, how long that counts, and when it is gone."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.admin import Cluster


def late_answer() -> Future[Any]:
    """An answer that has not come when it is first looked for."""
    answer: Future[Any] = Future()
    threading.Timer(0.2, answer.set_result, ["late"]).start()
    return answer


def test_a_client_that_nobody_uses_is_gone_at_once() -> None:
    """A member asks with another client again and again while Kafka is away: each has threads and megabytes."""
    cluster = Cluster({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"})
    client = weakref.ref(cluster)
    gc.disable()
    try:
        del cluster
        assert client() is None
    finally:
        gc.enable()


def test_a_refused_login_counts_until_a_broker_answers() -> None:
    cluster = Cluster({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"})
    cluster._complain(BrokerError(BrokerError._AUTHENTICATION, "the token has expired"))
    with pytest.raises(KafkaError, match="the token has expired"):
        cluster._answers({"first": Future()})
    answer: Future[Any] = Future()
    answer.set_result("at once")
    assert cluster._answers({"second": answer}) == {"second": "at once"}
    assert cluster._answers({"third": late_answer()}) == {"third": "late"}
