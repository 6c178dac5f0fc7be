"""The Kafka ACLs that a harvester needs: no more, and no less."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from airflow_outbox.harvest.assembly import limits_of
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.transactional_log import transactional_ids
from airflow_outbox.harvest.many.names import ROLES
from airflow_outbox.postgres.names import is_kafkas_own
from airflow_outbox.values.layout import Layout

Resource = Literal["group", "topic", "transactional-id"]
PRINCIPAL = "User:HARVESTER"
DATA_TOPIC = "DATA_TOPIC"
_OWN = "airflow-outbox."
"""How the names of any outbox in Kafka begin, unless they are configured."""
_ONE = (Layout(),)
# As kafka-acls spells them.
_OPERATIONS = {
    "READ": "Read",
    "WRITE": "Write",
    "CREATE": "Create",
    "ALTER": "Alter",
    "DESCRIBE_CONFIGS": "DescribeConfigs",
}
_REFUSALS = (BrokerError.TOPIC_AUTHORIZATION_FAILED, BrokerError.GROUP_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class Acl:
    """One operation that must be allowed. `purpose` fails without it: `harvest`, `init`, `check`, `reshard` or
    `positions`. A name with a star at its end means all names that begin so.
    """

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


def needed_acls(
    config: HarvestConfig,
    names: KafkaNames,
    data_topics: Collection[str],
    *,
    layouts: Sequence[Layout] = _ONE,
    promotions: Sequence[int] = (0,),
    elects: bool = True,
) -> list[Acl]:
    """The whole list, for an outbox that has these layouts one after the other, after each number of promotions. Read
    and write include describe, and write on any topic includes idempotent production. An outbox of a list `elects`
    nobody.
    """
    topics = sorted(data_topics)
    own = names.own_topics(config)
    grows = max(layout.shards for layout in layouts) > layouts[0].shards
    groups = dict.fromkeys(names.group_of(layout.shards, number) for layout in layouts for number in promotions)
    ids = dict.fromkeys(
        transactional_id
        for layout in layouts
        for shard in range(layout.shards)
        for transactional_id in transactional_ids(
            config.model_copy(update={"limits": limits_of(config, layout)}), names, shard=shard
        )
    )
    ledger = [
        Acl("topic", names.ledger_topic, "READ", "harvest"),
        Acl("topic", names.ledger_topic, "WRITE", "harvest"),
        Acl("topic", names.ledger_topic, "CREATE", "init"),
        Acl("topic", names.ledger_topic, "DESCRIBE_CONFIGS", "check"),
        *(Acl("transactional-id", transactional_id, "WRITE", "harvest") for transactional_id in ids),
    ]
    extents = [
        Acl("topic", names.extents_topic, "READ", "harvest"),
        Acl("topic", names.extents_topic, "WRITE", "harvest"),
        Acl("topic", names.extents_topic, "CREATE", "init"),
        Acl("topic", names.extents_topic, "DESCRIBE_CONFIGS", "check"),
    ]
    election = [
        *(Acl("group", group, "READ", "harvest") for group in groups),
        Acl("topic", names.leader_topic, "READ", "harvest"),
        Acl("topic", names.leader_topic, "WRITE", "harvest"),
    ]
    examined = [names.leader_topic, *topics] if elects else topics
    return [
        *(election if elects else []),
        *(Acl("topic", topic, "WRITE", "harvest") for topic in topics),
        Acl("topic", names.leader_topic, "CREATE", "init"),
        *(Acl("topic", topic, "DESCRIBE_CONFIGS", "check") for topic in examined),
        *(ledger if config.delivery == "exactly_once" else []),
        *(extents if config.positions.enabled else []),
        *(_for_positions(config, names, topics) if config.positions.groups else []),
        *(Acl("topic", topic, "ALTER", "reshard") for topic in own if grows and not is_kafkas_own(topic)),
    ]


def election_acls(names: KafkaNames, *, shards: int) -> list[Acl]:
    """The ACLs for an election among so many leaders alone."""
    return [
        Acl("group", names.group_of(shards), "READ", "harvest"),
        Acl("topic", names.leader_topic, "READ", "harvest"),
        Acl("topic", names.leader_topic, "WRITE", "harvest"),
        Acl("topic", names.leader_topic, "CREATE", "init"),
        Acl("topic", names.leader_topic, "DESCRIBE_CONFIGS", "check"),
    ]


def acls_of_list(
    config: HarvestConfig,
    election: KafkaNames,
    outboxes: Mapping[KafkaNames, HarvestConfig],
    data_topics: Collection[str],
    *,
    may_grow: bool,
) -> list[Acl]:
    """The ACLs for a list of outboxes: its `election`, and what each outbox has. A list that `may_grow` harvests
    outboxes whose ids nobody knows yet, so that its ACLs are for the beginning that all of their names have.
    """
    topics = sorted(data_topics)
    if may_grow:
        outboxes = {KafkaNames.of(config, UUID(int=0)): config}
    own = [acl for names, each in outboxes.items() for acl in needed_acls(each, names, (), elects=False)]
    if may_grow:
        own = [replace(acl, name=f"{_OWN}*") if acl.name.startswith(_OWN) else acl for acl in own]
    return [
        *election_acls(election, shards=ROLES),
        *(Acl("topic", topic, "WRITE", "harvest") for topic in topics),
        *(Acl("topic", topic, "DESCRIBE_CONFIGS", "check") for topic in topics),
        *dict.fromkeys(own),
    ]


def _for_positions(config: HarvestConfig, names: KafkaNames, topics: Iterable[str]) -> Iterable[Acl]:
    """Return the ACLs for the replicator of positions. A right to read a group includes commits for it."""
    wanted = [pattern for pattern in config.positions.groups if not pattern.startswith("!")]
    for group in dict.fromkeys([*map(_plain_beginning, wanted), f"{names.positions_groups}*"]):
        yield Acl("group", group, "READ", "positions")
    for topic in topics:
        yield Acl("topic", topic, "READ", "positions")


def _plain_beginning(pattern: str) -> str:
    """Return a pattern as Kafka's ACLs know them: a name, or a beginning and a star."""
    plain = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return pattern if plain == pattern else f"{plain}*"


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
        shlex.join([*begun, "--operation", _OPERATIONS[acl.operation], f"--{acl.resource}", *_as_options(acl.name)])
        for acl in acls
    ]


def _as_options(name: str) -> list[str]:
    beginning = name.removesuffix("*")
    return [beginning, "--resource-pattern-type", "prefixed"] if beginning not in ("", name) else [name]
