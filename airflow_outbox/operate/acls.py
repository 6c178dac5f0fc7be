"""The Kafka ACLs that a harvester needs: no more, and no less."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.transactional_log import transactional_ids
from airflow_outbox.postgres.table import SHARD

Resource = Literal["group", "topic", "transactional-id"]
PRINCIPAL = "User:HARVESTER"
DATA_TOPIC = "DATA_TOPIC"
# As kafka-acls spells them.
_OPERATIONS = {"READ": "Read", "WRITE": "Write", "CREATE": "Create", "DESCRIBE_CONFIGS": "DescribeConfigs"}
_REFUSALS = (BrokerError.TOPIC_AUTHORIZATION_FAILED, BrokerError.GROUP_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class Acl:
    """One operation that must be allowed; `purpose` says which fails without it: `harvest`, `init` or `check`."""

    resource: Resource
    name: str
    operation: str
    purpose: str

    def missing(self, answer: Any) -> bool:
        """Whether the cluster's description of the resource (or its error) says that the operation is not allowed."""
        if isinstance(answer, BrokerError):
            return answer.code() in _REFUSALS
        allowed = answer.authorized_operations
        # An old broker answers None, which does not mean that nothing is allowed.
        return allowed is not None and AclOperation[self.operation] not in allowed


def needed_acls(config: HarvestConfig, names: KafkaNames, data_topics: Collection[str]) -> list[Acl]:
    """The whole list. Read and write include describe, and write on any topic includes idempotent production."""
    topics = sorted(data_topics)
    ledger = [
        Acl("topic", names.ledger_topic, "READ", "harvest"),
        Acl("topic", names.ledger_topic, "WRITE", "harvest"),
        Acl("topic", names.ledger_topic, "CREATE", "init"),
        Acl("topic", names.ledger_topic, "DESCRIBE_CONFIGS", "check"),
        *(
            Acl("transactional-id", transactional_id, "WRITE", "harvest")
            for transactional_id in transactional_ids(config, names, shard=SHARD)
        ),
    ]
    return [
        Acl("group", names.leader_group_id, "READ", "harvest"),
        Acl("topic", names.leader_topic, "READ", "harvest"),
        Acl("topic", names.leader_topic, "WRITE", "harvest"),
        *(Acl("topic", topic, "WRITE", "harvest") for topic in topics),
        Acl("topic", names.leader_topic, "CREATE", "init"),
        *(Acl("topic", topic, "DESCRIBE_CONFIGS", "check") for topic in [names.leader_topic, *topics]),
        *(ledger if config.delivery == "exactly_once" else []),
    ]


def principal(config: HarvestConfig) -> str:
    """The principal that the list is for: the configured user name, or a placeholder."""
    user = config.kafka.get("sasl.username")
    return f"User:{user}" if user else PRINCIPAL


def as_table(acls: Iterable[Acl], principal: str) -> list[str]:
    """The list as aligned text, with a heading."""
    rows = [("principal", "resource", "name", "operation", "for")]
    rows += [(principal, acl.resource, acl.name, acl.operation, acl.purpose) for acl in acls]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_commands(acls: Iterable[Acl], principal: str, servers: str) -> list[str]:
    """The list as commands for Kafka's own `kafka-acls`, one a line."""
    begun = ["kafka-acls", "--bootstrap-server", servers, "--add", "--allow-principal", principal]
    return [
        shlex.join([*begun, "--operation", _OPERATIONS[acl.operation], f"--{acl.resource}", acl.name]) for acl in acls
    ]
