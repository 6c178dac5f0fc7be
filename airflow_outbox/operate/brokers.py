"""Are brokers and client safe for transactions? This is the part that `check` can see.

`docs/concepts/safe-kafka.md` says why each of these matters. The values are the brokers' own settings. Kafka shows them
to principals with DESCRIBE_CONFIGS on the cluster. A broker does not tell clients its version, but it tells which
versions of each request it knows, and librdkafka logs that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.operate.finding import Finding, Severity

ADD_PARTITIONS = "AddPartitionsToTxn"
_VERIFYING = 4  # the version of that request by which brokers verify transactions: Kafka 3.6
_NEWEST_TESTED = (2, 16)  # librdkafka

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_VERIFICATION = "transaction.partition.verification.enable"
_REPLICAS = "transaction.state.log.replication.factor"
_MIN_ISR = "transaction.state.log.min.isr"


def examine_transactions(config: HarvestConfig) -> Iterator[Finding]:
    """Findings about a cluster and this client, for harvesting exactly once. Raises KafkaError."""
    yield from examine_client(confluent_kafka.libversion()[0])
    cluster = Cluster(config.kafka, notes_versions=True)
    for broker, settings in cluster.broker_settings().items():
        yield from examine_settings(config, broker, settings)
    yield from examine_version(cluster.newest_version(ADD_PARTITIONS))


def examine_client(version: str) -> Iterator[Finding]:
    """Whether the defence against late requests was tested with the installed librdkafka."""
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    if numbers > _NEWEST_TESTED:
        newest = ".".join(map(str, _NEWEST_TESTED))
        yield Finding(
            Severity.UNCHECKED,
            f"librdkafka {version}: the defence against late requests was tested only up to {newest}. "
            f"Install confluent-kafka {newest}, or a newer airflow-outbox",
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
    config: HarvestConfig, broker: int, settings: Mapping[str, Any] | BrokerError
) -> Iterator[Finding]:
    """Findings about one broker's settings, or why it does not show them."""
    if isinstance(settings, BrokerError):
        reason = settings.str()
        if settings.code() == BrokerError.CLUSTER_AUTHORIZATION_FAILED:
            reason = (
                "Kafka does not allow DESCRIBE_CONFIGS on the cluster. Allow it, or look at these settings yourself"
            )
        names = ", ".join((_VERIFICATION, _REPLICAS, _MIN_ISR, _MAX_TIMEOUT))
        yield Finding(Severity.UNCHECKED, f"{names} of broker {broker}: {reason}")
        return
    values = {name: entry.value for name, entry in settings.items()}
    for name in (_VERIFICATION, _REPLICAS, _MIN_ISR, _MAX_TIMEOUT):
        if values.get(name) is None:
            yield Finding(Severity.UNCHECKED, f"{name} of broker {broker}: the broker does not show it")
    timeout = config.limits.transaction_timeout
    if (longest := values.get(_MAX_TIMEOUT)) is not None and int(longest) < 1000 * timeout:
        yield Finding(
            Severity.MISSING,
            f"broker {broker} has {_MAX_TIMEOUT}={longest} and refuses limits.transaction_timeout, {timeout:g} s. "
            f"Set limits.transaction_timeout to {int(longest) / 1000:g} or less",
        )
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
        yield Finding(
            Severity.DANGEROUS,
            f"broker {broker} has {_MIN_ISR}=1: losing one broker can lose acknowledged state of transactions. "
            "Set it to 2",
        )
