"""Errors of Kafka's client: how they are raised, how they are said, and which of its warnings get into a log."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Producer

from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    RepeatedWarnings,
    is_not_the_clients,
    raised,
    reason_of,
    refused_settings,
)

LOADS = (
    "GETPID [airflow-outbox#producer-8] [thrd:main]: Failed to acquire transactional PID from broker TxnCoordinator/1: "
    "Broker: Coordinator load in progress: retrying"
)


def passes(filter: RepeatedWarnings, text: str, level: int = logging.WARNING) -> bool:
    return bool(filter.filter(logging.LogRecord("client", level, "", 0, text, (), None)))


def test_a_warning_comes_once_and_numbers_do_not_make_it_another_one() -> None:
    filter = RepeatedWarnings(tells_retries=False)
    assert passes(filter, "FAIL [producer-1]: refused after 3 ms")
    assert not passes(filter, "FAIL [producer-2]: refused after 17 ms")
    assert passes(filter, "FAIL [producer-2]: timed out")
    assert all(passes(filter, "debugging", logging.DEBUG) for _ in range(3))


def test_what_the_client_tries_again_by_itself_is_left_out_unless_somebody_looks_closely() -> None:
    filter = RepeatedWarnings(tells_retries=False)
    assert not passes(filter, LOADS)
    assert passes(filter, LOADS, logging.ERROR)
    assert passes(RepeatedWarnings(tells_retries=True), LOADS)


def test_a_terminal_gets_our_own_lines_only() -> None:
    def is_ours(text: str) -> bool:
        return is_not_the_clients(logging.LogRecord("client", logging.ERROR, "", 0, text, (), None))

    assert not is_ours(LOADS)
    assert not is_ours("FAIL [rdkafka#consumer-1] [thrd:127.0.0.1:1/bootstrap]: Connect to ipv4#127.0.0.1:1 failed")
    assert is_ours("Postgres can't be asked what is published: [no answer]. Next try in 1.0 s")


@pytest.mark.parametrize(
    "said",
    [
        "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
        "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 3ms in state CONNECT, 1 "
        "identical error(s) suppressed)",
        "sasl_ssl://b-1:9096/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 12ms in state CONNECT, "
        "21 identical error(s) suppressed)",
    ],
)
def test_a_complaint_is_the_same_each_time(said: str) -> None:
    assert reason_of(BrokerError(BrokerError._TRANSPORT, said)) == (
        "Connect to ipv4#127.0.0.1:1 failed: Connection refused"
    )


def test_a_setting_that_the_client_does_not_take_is_said_in_words() -> None:
    for settings, says in (
        ({"compresion.type": "lz4"}, "Kafka's client knows no setting compresion.type. Correct kafka: librdkafka's"),
        ({"acks": "some"}, "Kafka's client refuses its settings: Invalid value"),
        ({"message.max.bytes": 0}, "is outside allowed range"),
    ):
        with pytest.raises(KafkaException) as raised:
            Producer(settings)
        error = str(refused_settings(raised.value, settings, remedy="Correct kafka"))
        assert says in error
        assert "KafkaError" not in error
        assert "Correct kafka" in error


@pytest.mark.parametrize("how", ["in an exception", "itself", "behind another error"])
def test_an_error_of_the_client_is_found_however_it_is_raised(how: str) -> None:
    fatal = BrokerError(BrokerError.FENCED_INSTANCE_ID, "fenced", True)
    try:
        try:
            raise fatal if how == "itself" else KafkaException(fatal)  # type: ignore[misc]
        except KafkaException as inner:
            if how == "behind another error":
                raise SystemError("returned a result with an exception set") from inner
            raise
    except CLIENT_ERRORS as error:
        found = raised(error)
    assert found.code() == BrokerError.FENCED_INSTANCE_ID
