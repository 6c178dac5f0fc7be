"""Whether this member reaches Kafka: asked all the time, by a client of its own.

A leader's heartbeats tell as much, but a member that stands by sends none. And a client that is busy with something
else, or that waits to connect again, would tell late.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.election_settings import elections_client_id
from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    REFUSALS,
    explained,
    is_about_login,
    not_allowed,
    raised,
    refused_settings,
    unreached,
)
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.settings import shared

PATIENCE = 1.5
"""Seconds that Kafka has for an answer: within three, operators know that it gives none."""
_POLL = 0.05
_ABOUT_LOGIN, _OTHER = "about the login", "other"
_LASTS = 10.0  # seconds for which a complaint explains why there is no answer
_silent = logging.getLogger(f"{__name__}.client")  # the other clients log the same
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class ReachabilityProbe:
    """Asks for some topics of the outbox's own. One thread at a time uses it."""

    def __init__(self, config: HarvestConfig, topics: Sequence[str]) -> None:
        """Raises KafkaError for settings that Kafka's client refuses. With tokens this waits for one."""
        self._kafka = {**shared(config.kafka), "client.id": elections_client_id(config)}
        self._topics = list(topics)
        self._complaints: dict[str, tuple[float, BrokerError]] = {}  # the last of each kind, and when
        try:
            settings: dict[str, Any] = {**self._kafka, "error_cb": self._complain}
            self._client = AdminClient(settings, logger=_silent)
        except REFUSALS as error:
            raise refused_settings(error, config.kafka, remedy="Correct kafka") from error

    def failure(self) -> str | None:
        """Ask Kafka. Return why it does not answer, or can't serve this member; None if all is well."""
        began = time.monotonic()
        try:
            answers = self._client.describe_topics(TopicCollection(self._topics), request_timeout=PATIENCE)
            while not all(answer.done() for answer in answers.values()) and time.monotonic() < began + 2 * PATIENCE:
                self._client.poll(_POLL)
                if _ABOUT_LOGIN in self._complaints and self._complaints[_ABOUT_LOGIN][0] > began:
                    break  # it is refused each time
        except CLIENT_ERRORS as error:
            return explained(raised(error), self._kafka)
        for topic, answer in answers.items():
            problem = answer.exception() if answer.done() else TimeoutError("no answer")
            if problem is not None and (failure := self._explained(topic, problem)) is not None:
                return failure
        return None

    def _explained(self, topic: str, error: BaseException) -> str | None:
        reason = error.args[0] if isinstance(error, KafkaException) else None
        if isinstance(reason, BrokerError) and reason.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            return f"topic {topic} does not exist. Run `airflow-outbox init`"
        if isinstance(reason, BrokerError) and reason.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            return not_allowed("READ", "topic", topic)
        if isinstance(reason, BrokerError) and reason.code() > 0:  # a broker has answered
            return None
        for at, complaint in (self._complaints[key] for key in (_ABOUT_LOGIN, _OTHER) if key in self._complaints):
            if time.monotonic() - at < _LASTS:
                return explained(complaint, self._kafka)
        return unreached(f"no broker has answered for {PATIENCE:g} s", self._kafka)

    def _complain(self, error: BrokerError) -> None:
        self._complaints[_ABOUT_LOGIN if is_about_login(error) else _OTHER] = time.monotonic(), error


def reachability_probes(config: HarvestConfig, names: KafkaNames) -> Mapping[str, Callable[[], str | None]]:
    """Return `ReachabilityProbe.failure` by cluster, for the topics that the configuration needs there.

    It says nothing about settings that Kafka's client refuses: the clients that harvest do.
    """
    found: dict[str, Callable[[], str | None]] = {}
    for cluster, own in config.by_cluster().items():
        topics = [names.leader_topic, *([names.ledger_topic] if config.delivery == "exactly_once" else [])]
        try:
            found[cluster] = ReachabilityProbe(own, topics).failure
        except KafkaError:
            found[cluster] = lambda: None
    return found
