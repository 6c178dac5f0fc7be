"""librdkafka's settings, each for the clients that it is for.

`kafka` has settings for all clients, as tools share them. A setting for producers alone would keep a consumer or an
admin client from starting, or change what it promises, and the other way round. So each client takes those that are for
its kind. Those by which the protocol holds are the protocol's own: nobody else's value counts.

librdkafka's documentation, CONFIGURATION.md, says which are for producers (P), for consumers (C), and for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_outbox.harvest.settings_base import KafkaSettings

if TYPE_CHECKING:
    from airflow_outbox.harvest.config import HarvestConfig

CLIENT_SETTINGS: KafkaSettings = {
    "client.id": "airflow-outbox",
    # A broker that is back is found within a second; librdkafka's own limit is 10 s.
    "reconnect.backoff.max.ms": 1000,
    # A client that asks for topics while a broker begins to answer again may lose the question (librdkafka 2.16), and
    # then repeats it only at this interval; librdkafka's own is five minutes.
    "topic.metadata.refresh.interval.ms": 5_000,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    # A transaction is a series of small requests: none must wait for TCP to acknowledge the one before.
    "socket.nagle.disable": True,
}
"""The settings that every client here shares, unless the user's are others."""
MOST_IN_FLIGHT = 5
"""Requests at a time that an idempotent producer may have on a connection."""
IN_FLIGHT = "max.in.flight.requests.per.connection"

_NAMES = {
    "auto.commit.enable": "enable.auto.commit",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": IN_FLIGHT,
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Other names of settings, and those by which they are known here, which are mostly those of Kafka's Java clients."""
_PRODUCERS_PROTOCOL = frozenset(
    {
        *("acks", "delivery.report.only.error", "enable.gapless.guarantee", "enable.idempotence", "queuing.strategy"),
        *("queue.buffering.max.kbytes", "queue.buffering.max.messages", "transaction.timeout.ms", "transactional.id"),
    }
)
_CONSUMERS_PROTOCOL = frozenset(
    {
        *("auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "group.id"),
        *("group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor", "isolation.level"),
        *("heartbeat.interval.ms", "max.poll.interval.ms", "offset.store.method", "offset.store.path"),
        *("partition.assignment.strategy", "session.timeout.ms", "allow.auto.create.topics"),
    }
)
_PROTOCOL = _PRODUCERS_PROTOCOL | _CONSUMERS_PROTOCOL | {"enabled_events"}  # without events there are no reports
_PRODUCERS = _PRODUCERS_PROTOCOL | {
    *("batch.num.messages", "batch.size", "compression.level", "compression.type", "delivery.timeout.ms", "linger.ms"),
    *("dr_cb", "dr_msg_cb", "msg_order_cmp", "on_delivery", "partitioner", "partitioner_cb", "produce.offset.report"),
    *("queue.buffering.backpressure.threshold", "request.timeout.ms", "retries", "sticky.partitioning.linger.ms"),
}
_CONSUMERS = _CONSUMERS_PROTOCOL | {
    *("auto.commit.interval.ms", "check.crcs", "consume.callback.max.messages", "coordinator.query.interval.ms"),
    *("consume_cb", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms"),
    *("fetch.wait.max.ms", "max.partition.fetch.bytes", "max.poll.records", "offset.store.sync.interval.ms"),
    *("offset_commit_cb", "on_commit", "queued.max.messages.kbytes", "queued.min.messages", "rebalance_cb"),
    "share.acknowledgement.mode",
}
_NUMBERS = ("batch.size", "delivery.timeout.ms", "log_level", IN_FLIGHT)
"""Those that are also reckoned with here."""


def under_one_name(settings: Mapping[str, Any]) -> KafkaSettings:
    """Return settings by the names by which they are known here.

    Raises ValueError for a setting that has two values under two names, and for a number that is none.
    """
    known: KafkaSettings = {}
    named: dict[str, str] = {}
    for given, value in settings.items():
        name = _NAMES.get(given, given)
        if known.setdefault(name, value) != value:
            raise ValueError(f"{named[name]} and {given} are one setting. Give it once")
        named.setdefault(name, given)
        if name == "test.mock.num.brokers":
            raise ValueError(f"{name}: records would go to brokers that exist in this process only. Leave it out")
        if name in _NUMBERS and not _is_number(value):
            raise ValueError(f"{given}: give a whole number")
    return known


def shared(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that is neither for records nor for a group."""
    return {**CLIENT_SETTINGS, **_without(kafka, _PRODUCERS | _CONSUMERS | _PROTOCOL)}


def of_producer(config: HarvestConfig) -> dict[str, Any]:
    """Return a producer's settings, as far as they are the user's to choose."""
    foreign = _CONSUMERS | _PROTOCOL
    settings = {**CLIENT_SETTINGS, **_without(config.kafka, foreign), **_without(config.kafka_producer, foreign)}
    if IN_FLIGHT in settings:
        settings[IN_FLIGHT] = min(int(settings[IN_FLIGHT]), MOST_IN_FLIGHT)
    return settings


def of_consumer(kafka: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's settings, as far as they are the user's to choose; `own` are for consumers alone."""
    foreign = _PRODUCERS | _PROTOCOL
    return {**CLIENT_SETTINGS, **_without(kafka, foreign), **_without(own, foreign)}


def remarks(config: HarvestConfig) -> Iterator[str]:
    """Say which of the user's settings have no effect, or not all of it."""
    groups = {f"clusters.{name}": kafka for name, kafka in config.clusters.items()} or {"kafka": config.kafka}
    foreign = {"kafka_producer": _CONSUMERS, "kafka_consumer": _PRODUCERS}
    unused = [
        f"{group}.{name}"
        for group, settings in {
            **groups,
            "kafka_producer": config.kafka_producer,
            "kafka_consumer": config.kafka_consumer,
        }.items()
        for name in sorted(settings)
        if name in _PROTOCOL or name in foreign.get(group, ())
    ]
    if unused:
        have, them, they = ("has", "it", "it is") if len(unused) == 1 else ("have", "them", "they are")
        yield (
            f"{', '.join(unused)} {have} no effect: the protocol sets {them}, or {they} for another kind of client. "
            f"Leave {them} out"
        )
    for group, settings in {**groups, "kafka_producer": config.kafka_producer}.items():
        if int(str(settings.get(IN_FLIGHT, 0))) > MOST_IN_FLIGHT:
            yield f"{group}.{IN_FLIGHT} counts as {MOST_IN_FLIGHT}: an idempotent producer may not have more"


def _without(settings: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _is_number(value: object) -> bool:
    try:
        int(str(value))
    except ValueError:
        return False
    return not isinstance(value, bool)
