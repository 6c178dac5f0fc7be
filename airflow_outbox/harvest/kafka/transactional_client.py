"""Kafka's client for transactions: its settings, its log, and how it fences the earlier producers of an id."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import Any

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import Producer

from airflow_outbox.errors import KafkaError, StuckTransactionsError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.error_kinds import KINDS, ErrorKind
from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    REFUSALS,
    explained,
    not_allowed,
    raised,
    refused_settings,
)
from airflow_outbox.harvest.kafka.producer import producer_settings

logger = logging.getLogger(__name__)

_BACKOFF = {"retry.backoff.ms": 500, "retry.backoff.max.ms": 1000}
_NO_TOPIC = "?"
_ERRORS = 3  # syslog's number, as the client counts
CALLS_UNTIL_STUCK = 2  # in a row that wait for an earlier transaction to end
CALLS_TO_CONNECT = 2
CALL_TIME = 5.0  # a call to the client returns after this long, and is made again until its deadline


def transactional_settings(config: HarvestConfig, transactional_id: str) -> dict[str, Any]:
    """Return the producer's settings: those of any producer, and those that transactions need."""
    timeout = int(config.limits.transaction_timeout * 1000)
    settings = producer_settings(config)
    return {
        **settings,
        # A batch is flushed when its last record is sent: nothing waits that long.
        "linger.ms": config.kafka_producer.get("linger.ms", config.kafka.get("linger.ms", 5)),
        # Only the client's log names the topics that Kafka keeps out of a transaction.
        "log_level": max(_ERRORS, int(settings.get("log_level", _ERRORS + 3))),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout,
        "delivery.timeout.ms": min(timeout, int(settings["delivery.timeout.ms"]) or timeout),  # 0: for ever
        "socket.timeout.ms": min(timeout - 1000, 60_000),
        # The client's retry delay bounds how long a call may last without a new epoch after it.
        **{name: settings.get(name, value) for name, value in _BACKOFF.items()},
    }


def fence_producer(config: HarvestConfig, transactional_id: str, *, calls: int = CALLS_UNTIL_STUCK) -> None:
    """End the transaction of every producer with that id, and keep them from new ones.

    Raises KafkaError; StuckTransactionsError when the end of a transaction is decided, and it has not ended after so
    many calls.
    """
    settings = transactional_settings(config, transactional_id)
    complaints: list[str] = []

    def complain(error: BrokerError) -> None:
        complaints.append(explained(error, settings))

    try:
        producer = Producer({**settings, "error_cb": complain}, logger=logger)
    except REFUSALS as error:
        raise refused_settings(error, settings, remedy="Correct kafka or kafka_producer") from error
    connect(producer)
    deadline = time.monotonic() + config.limits.transaction_timeout
    waiting = 0
    while True:
        try:
            return producer.init_transactions(CALL_TIME)
        except CLIENT_ERRORS as error:
            reason = raised(error)
            waiting = waiting + 1 if waits_for_end(reason) else 0
            if waiting == calls:
                raise StuckTransactionsError([transactional_id]) from error
            if not reason.retriable() or time.monotonic() > deadline:
                raise KafkaError(complaints[-1] if complaints else refusal(reason, transactional_id)) from error


def waits_for_end(error: BrokerError) -> bool:
    """Whether the coordinator has decided how the last transaction ends, but not yet written all of its markers."""
    return error.code() == BrokerError.CONCURRENT_TRANSACTIONS


def connect(producer: Producer) -> None:
    """Let a new client connect before it initialises transactions: one that is not connected tries again half a second
    later. After two requests it is connected. They ask for an impossible topic, so that no broker makes one.
    """
    with contextlib.suppress(*CLIENT_ERRORS):
        for _ in range(CALLS_TO_CONNECT):
            producer.list_topics(_NO_TOPIC, CALL_TIME)


def refusal(error: BrokerError, transactional_id: str) -> str:
    """Return an error of a transactional call in words."""
    if error.code() == BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return not_allowed("WRITE", "transactional-id", transactional_id)
    return error.str() or error.name()


class ClientLog(logging.Handler):
    """The topics that Kafka kept out of the transaction, and why, and those that found their records `untimely`.

    Some are `not_added` and yet not `refused`: the error may be about something else. All of this is read from the
    client's log, since its error names none. Everything that it logs is passed on.
    """

    _UNTIMELY = re.compile(r"ProduceRequest for (\S+) \[\d+\] .*\(INVALID_TIMESTAMP\)")
    _LINE = re.compile(r'Failed to add partition "([^"]+)" \[\d+\] to transaction: (.*)')
    _FOLLOWING = BrokerError(BrokerError.OPERATION_NOT_ATTEMPTED).str()  # from another topic's reason
    _REASONS = frozenset(BrokerError(code).str() for code, kind in KINDS.items() if kind is ErrorKind.RECORD)

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, str] = {}
        self.not_added: set[str] = set()
        self.untimely: set[str] = set()
        self.logger = logging.Logger(logger.name, logging.WARNING)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        found = self._LINE.search(record.getMessage())
        if found is not None and found[2] != self._FOLLOWING:
            self.not_added.add(found[1])
            if found[2] in self._REASONS:  # other reasons may hit all topics
                self.refused[found[1]] = found[2]
        if (found := self._UNTIMELY.search(record.getMessage())) is not None:
            self.untimely.add(found[1])
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
