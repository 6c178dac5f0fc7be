"""All outboxes of a list, for operators: how they are, what is missing, what Kafka must allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import (
    ConfigurationError,
    KafkaError,
    OutboxError,
    PostgresError,
    PostgresUnreachableError,
)
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import not_allowed
from airflow_outbox.harvest.kafka.names import KafkaNames, unusable
from airflow_outbox.harvest.many.choice import of_outbox
from airflow_outbox.harvest.many.names import ROLES, names_of
from airflow_outbox.operate.acls import DATA_TOPIC, Acl, acls_of_list, election_acls
from airflow_outbox.operate.check import examine, pending_topics
from airflow_outbox.operate.finding import Finding, Severity
from airflow_outbox.operate.status import OutboxStatus, read_status
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.resting import find_outboxes
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.judging import unknown
from airflow_outbox.values.outbox_list import OutboxPattern
from airflow_outbox.values.verdict import Verdict

_AT_A_TIME = 8
"""Outboxes that are examined at a time: each takes a connection to Postgres and a client of Kafka."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The outboxes of a list that are there, each with a configuration of its own, and the entries that mean none."""

    outboxes: Sequence[HarvestConfig]
    unmet: Sequence[OutboxPattern]


def listed(connection: psycopg.Connection[Any], config: HarvestConfig) -> Listed:
    """Find the outboxes of a list. Raises PostgresError."""
    found, unmet = find_outboxes(connection, [OutboxPattern.parse(entry) for entry in config.outboxes])
    outboxes = sorted((each.name for each in found), key=str)
    return Listed([of_outbox(config, name.text()) for name in outboxes], unmet)


def read_statuses(config: HarvestConfig) -> Mapping[str, OutboxStatus | Verdict]:
    """Return how each outbox of a list is, by its name; only a verdict where nobody can tell more.

    Raises PostgresError when no outbox can be read.
    """
    found: dict[str, OutboxStatus | Verdict] = {}
    with closing(connect(config.data_source, purpose="command")) as connection:
        outboxes = listed(connection, config)
        for entry in outboxes.unmet:
            if entry.is_a_name:
                found[entry.text] = unknown(_absent(entry))
        for own in outboxes.outboxes:
            try:
                found[str(own.name)] = read_status(connection, own.name, thresholds=own.thresholds)
            except PostgresUnreachableError:
                raise
            except OutboxError as error:
                found[str(own.name)] = unknown(str(error))
    return found


def examine_list(config: HarvestConfig) -> list[Finding]:
    """Examine all outboxes of a list, and its election. Anything that can't be reached is a finding, too.

    A finding about every outbox is told once.
    """
    try:
        with closing(connect(config.data_source, purpose="check")) as connection:
            outboxes = listed(connection, config)
    except PostgresError as error:
        return [Finding(Severity.MISSING, str(error))]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found = list(pool.map(partial(examine, elects=False), outboxes.outboxes))
    findings = [_unmet(entry) for entry in outboxes.unmet]
    about: dict[Finding, list[str]] = {}
    for own, each in zip(outboxes.outboxes, found, strict=True):
        for finding in each:
            about.setdefault(finding, []).append(str(own.name))
    for finding, names in about.items():
        if len(names) == len(outboxes.outboxes):
            findings.append(finding)
        else:
            findings += [Finding(finding.severity, f"{name}: {finding.text}") for name in names]
    return [*findings, *_examine_election(config)]


def needed_acls_of_list(config: HarvestConfig, topics: Collection[str] = ()) -> list[Acl]:
    """The ACLs that a member of the list needs for these data topics, and for those of records that wait now.

    It asks Postgres, not Kafka. Where an outbox is not made yet, its names in Kafka are not known: then the list covers
    all that it may get. Raises PostgresError.
    """
    with closing(connect(config.data_source, purpose="check")) as connection:
        found = listed(connection, config)
        outboxes = found.outboxes
        tables = [OutboxTable(connection, own.name) for own in outboxes]
        names = [KafkaNames.of(own, table.identity().outbox_id) for own, table in zip(outboxes, tables, strict=True)]
        pending = set[str]().union(*(pending_topics(connection, table.name) for table in tables))
    may_grow = bool(found.unmet) or not all(OutboxPattern.parse(entry).is_a_name for entry in config.outboxes)
    wanted = {*topics, *pending} or {DATA_TOPIC}
    return acls_of_list(config, names_of(config), dict(zip(names, outboxes, strict=True)), wanted, may_grow=may_grow)


def _absent(entry: OutboxPattern) -> str:
    return f"{entry.text} does not exist. Run `airflow-outbox init`"


def _unmet(entry: OutboxPattern) -> Finding:
    if entry.is_a_name:
        return Finding(Severity.MISSING, _absent(entry))
    text = f"no outbox matches {entry.text} yet. One that is made later is found by itself"
    return Finding(Severity.UNCHECKED, text)


def _examine_election(config: HarvestConfig) -> Iterator[Finding]:
    try:
        names = names_of(config)
        cluster = Cluster(config.kafka)
        topic = cluster.topics([names.leader_topic])[names.leader_topic]
        answers = {"topic": topic, "group": cluster.group(names.group_of(ROLES))}
    except (KafkaError, ConfigurationError, PostgresError) as error:
        yield Finding(Severity.MISSING, f"the list's election: {error}")
        return
    for acl in election_acls(names, shards=ROLES):
        if acl.purpose == "harvest" and acl.missing(answers[acl.resource]):
            yield Finding(Severity.MISSING, not_allowed(acl.operation, acl.resource, acl.name))
    if isinstance(topic, BrokerError):
        if topic.code() != BrokerError.TOPIC_AUTHORIZATION_FAILED:
            yield Finding(Severity.MISSING, f"the list's election: {unusable(names.leader_topic, topic, config)}")
    elif len(topic.partitions) < ROLES:
        yield Finding(
            Severity.DANGEROUS,
            f"topic {names.leader_topic}, of the list's election, has {len(topic.partitions)} partitions, so that no "
            f"more processes can share the list. Give it {ROLES}",
        )
