"""Do brokers and client fit, and are they safe for transactions? This is the part that `check` can see.

`docs/concepts/safe-kafka.md` says why each of these matters. The values are the brokers' own settings. Kafka shows them
to principals with DESCRIBE_CONFIGS on the cluster. Kafka goes by two of them only once, when it makes the topic of the
transactions' state: so that topic is looked at, too. A broker does not tell clients its version, but it tells which
versions of each request it knows, and librdkafka logs that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.operate.finding import Finding, Severity

ADD_PARTITIONS = "AddPartitionsToTxn"
_VERIFYING = 4  # the version of that request by which brokers verify transactions: Kafka 3.6
_TESTED = (2, 16)  # librdkafka

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_VERIFICATION = "transaction.partition.verification.enable"
_REPLICAS = "transaction.state.log.replication.factor"
_MIN_ISR = "transaction.state.log.min.isr"
_TRANSACTIONS = (_VERIFICATION, _REPLICAS, _MIN_ISR, _MAX_TIMEOUT)
_MIN_SESSION = "group.min.session.timeout.ms"
_MAX_SESSION = "group.max.session.timeout.ms"
_STATE = "__transaction_state"


def examine_brokers(config: HarvestConfig, *, elects: bool = True) -> Iterator[Finding]:
    """Findings about a cluster and this client: for the election, unless the outbox `elects` nobody, and for harvesting
    exactly once. Raises KafkaError.
    """
    transacts = config.delivery == "exactly_once"
    if transacts:
        yield from examine_client(confluent_kafka.libversion()[0])
    cluster = Cluster(config.kafka, notes_versions=transacts)
    wanted = (*(_TRANSACTIONS if transacts else ()), *((_MIN_SESSION, _MAX_SESSION) if elects else ()))
    found: list[Finding] = []
    for broker, settings in cluster.broker_settings().items() if wanted else ():
        found += examine_settings(config, broker, settings, wanted)
    yield from found
    if not transacts:
        return
    told = " ".join(finding.text for finding in found)
    yield from _examine_state(cluster, replicas=f"{_REPLICAS}=1" not in told, min_isr=f"{_MIN_ISR}=1" not in told)
    yield from examine_version(cluster.newest_version(ADD_PARTITIONS))


def _examine_state(cluster: Cluster, *, replicas: bool, min_isr: bool) -> Iterator[Finding]:
    """Findings about the topic of the transactions' state, of those two facts. It is there once anybody has used a
    transaction.
    """
    topic = cluster.topics([_STATE])[_STATE]
    settings = cluster.topic_settings([_STATE])[_STATE]
    hidden: list[str] = []
    for operation, answer in (("DESCRIBE", topic), ("DESCRIBE_CONFIGS", settings)):
        if isinstance(answer, BrokerError) and answer.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            hidden.append(operation)
        elif isinstance(answer, BrokerError) and answer.code() != BrokerError.UNKNOWN_TOPIC_OR_PART:
            yield Finding(Severity.UNCHECKED, f"topic {_STATE}: {answer.str()}")
    if hidden:
        reason = f"Kafka does not allow {' and '.join(hidden)} on it. Allow it, or look at the topic yourself"
        yield Finding(Severity.UNCHECKED, f"topic {_STATE}: {reason}")
    if replicas and not isinstance(topic, BrokerError) and any(len(each.replicas) < 2 for each in topic.partitions):
        yield Finding(
            Severity.DANGEROUS,
            f"topic {_STATE} has one replica, and was made before {_REPLICAS} was raised: losing that broker loses the "
            "state of all transactions. Give it three",
        )
    if min_isr and not isinstance(settings, BrokerError) and settings["min.insync.replicas"].value == "1":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {_STATE} has min.insync.replicas=1, and was made before {_MIN_ISR} was raised: losing one broker "
            "can lose acknowledged state of transactions. Set it to 2",
        )


def examine_client(version: str) -> Iterator[Finding]:
    """Whether the defence against late requests was tested with the installed librdkafka."""
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    if numbers != _TESTED:
        tested = ".".join(map(str, _TESTED))
        remedy = "or a newer airflow-outbox" if numbers > _TESTED else "which is newer"
        yield Finding(
            Severity.UNCHECKED,
            f"librdkafka {version}: the defence against late requests was tested with {tested} only. "
            f"Install confluent-kafka {tested}, {remedy}",
        )


def examine_version(newest: int | None) -> Iterator[Finding]:
    """Findings for `newest`, the newest version of AddPartitionsToTxn that every broker knows; None: not known."""
    if newest is None:
        yield Finding(Severity.UNCHECKED, "the brokers' version: the client does not report it. Use Kafka 3.6 or newer")
    elif newest < _VERIFYING:
        yield Finding(
            Severity.DANGEROUS,
            "a broker is older than Kafka 3.6 and does not verify transactions: a late request can open one "
            "that holds readers back until it times out. Upgrade the brokers",
        )


def examine_settings(
    config: HarvestConfig,
    broker: int,
    settings: Mapping[str, Any] | BrokerError,
    wanted: Sequence[str] = (*_TRANSACTIONS, _MIN_SESSION, _MAX_SESSION),
) -> Iterator[Finding]:
    """Findings about those of one broker's settings that are `wanted`, or why it does not show them."""
    if isinstance(settings, BrokerError):
        reason = settings.str()
        if settings.code() == BrokerError.CLUSTER_AUTHORIZATION_FAILED:
            reason = (
                "Kafka does not allow DESCRIBE_CONFIGS on the cluster. Allow it, or look at these settings yourself"
            )
        yield Finding(Severity.UNCHECKED, f"{', '.join(wanted)} of broker {broker}: {reason}")
        return
    values = {name: entry.value for name, entry in settings.items() if name in wanted}
    for name in wanted:
        if values.get(name) is None:
            yield Finding(Severity.UNCHECKED, f"{name} of broker {broker}: the broker does not show it")
    timeout = config.limits.transaction_timeout
    if (longest := values.get(_MAX_TIMEOUT)) is not None and int(longest) < 1000 * timeout:
        yield Finding(
            Severity.MISSING,
            f"broker {broker} has {_MAX_TIMEOUT}={longest} and refuses limits.transaction_timeout, {timeout:g} s. "
            f"Set limits.transaction_timeout to {int(longest) / 1000:g} or less",
        )
    session = config.limits.session_timeout
    if (shortest := values.get(_MIN_SESSION)) is not None and int(shortest) > 1000 * session:
        yield Finding(Severity.MISSING, _session_refused(broker, _MIN_SESSION, int(shortest), session, "more"))
    if (longest := values.get(_MAX_SESSION)) is not None and int(longest) < 1000 * session:
        yield Finding(Severity.MISSING, _session_refused(broker, _MAX_SESSION, int(longest), session, "less"))
    if values.get(_VERIFICATION) == "false":
        yield Finding(
            Severity.DANGEROUS,
            f"broker {broker} has {_VERIFICATION}=false: a late request can open a transaction that holds "
            "readers back until it times out. Set it to true",
        )
    if values.get(_REPLICAS) == "1":
        yield Finding(
            Severity.DANGEROUS,
            f"broker {broker} has {_REPLICAS}=1: losing that broker loses the state of all transactions. "
            "Give __transaction_state three replicas",
        )
    if values.get(_MIN_ISR) == "1":
        more = ", and give __transaction_state three replicas" if values.get(_REPLICAS) == "2" else ""
        yield Finding(
            Severity.DANGEROUS,
            f"broker {broker} has {_MIN_ISR}=1: losing one broker can lose acknowledged state of transactions. "
            f"Set it to 2{more}",
        )
    elif values.get(_REPLICAS) == "2" and values.get(_MIN_ISR) == "2":
        yield Finding(
            Severity.DANGEROUS,
            f"broker {broker} has {_REPLICAS}=2 and {_MIN_ISR}=2: nothing can be published while one of the two "
            "brokers is away. Give __transaction_state three replicas",
        )


def _session_refused(broker: int, setting: str, bound: int, session: float, more_or_less: str) -> str:
    return (
        f"broker {broker} has {setting}={bound} and refuses limits.session_timeout, {session:g} s: nobody would lead. "
        f"Set limits.session_timeout to {bound / 1000:g} or {more_or_less}"
    )
