"""What Kafka must allow, where positions are replicated, and for many outboxes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.acls import acls_of_list, as_commands, needed_acls

KAFKA = {"bootstrap.servers": "h:9092"}


def test_the_replicator_reads_groups_by_their_beginnings() -> None:
    settings = {"data_source": "", "clusters": {"primary": KAFKA, "west": KAFKA}}
    positions = {"enabled": True, "groups": ["orders-*", "app", "*-x", "!orders-audit"]}
    config = HarvestConfig.validated({**settings, "positions": positions}, source="test")
    names = KafkaNames.of(config, UUID(int=0))
    acls = [acl for acl in needed_acls(config, names, ["orders"]) if acl.purpose == "positions"]
    copies = f"airflow-outbox.{UUID(int=0)}.positions."
    assert [(acl.resource, acl.name) for acl in acls] == [
        ("group", "orders-*"),
        ("group", "app"),
        ("group", "*"),
        ("group", f"{copies}*"),
        ("topic", "orders"),
    ]
    assert [line.split("--operation Read ")[1] for line in as_commands(acls, "User:u", "h:9092")] == [
        "--group orders- --resource-pattern-type prefixed",
        "--group app",
        "--group '*'",
        f"--group {copies} --resource-pattern-type prefixed",
        "--topic orders",
    ]
    off = HarvestConfig.validated(settings, source="test")
    assert not [acl for acl in needed_acls(off, names, ["orders"]) if acl.purpose == "positions"]


def list_of(*entries: str, **settings: Any) -> HarvestConfig:
    given = {"data_source": "", "kafka": KAFKA, "outboxes": list(entries), **settings}
    return HarvestConfig.validated(given, source="test")


def rows_of(config: HarvestConfig, *, may_grow: bool) -> set[tuple[str, str, str, str]]:
    """The ACLs of a list of two outboxes, the ids of which are 1 and 2; the list's own id is 9."""
    outboxes = {KafkaNames.of(config, UUID(int=number)): config for number in (1, 2)}
    election = KafkaNames.of(config, UUID(int=9))
    acls = acls_of_list(config, election, outboxes, ["orders"], may_grow=may_grow)
    assert len(set(acls)) == len(acls)
    return {(acl.resource, acl.name, acl.operation, acl.purpose) for acl in acls}


ELECTION = f"airflow-outbox.{UUID(int=9)}"
OF_LIST = {
    ("group", f"{ELECTION}.shards", "READ", "harvest"),
    ("topic", f"{ELECTION}.leader", "READ", "harvest"),
    ("topic", f"{ELECTION}.leader", "WRITE", "harvest"),
    ("topic", f"{ELECTION}.leader", "CREATE", "init"),
    ("topic", f"{ELECTION}.leader", "DESCRIBE_CONFIGS", "check"),
    ("topic", "orders", "WRITE", "harvest"),
    ("topic", "orders", "DESCRIBE_CONFIGS", "check"),
}


def test_a_list_of_names_has_its_election_and_each_outboxs_ledger() -> None:
    rows = rows_of(list_of("a.outbox", "b.outbox"), may_grow=False)
    assert rows >= OF_LIST
    own = {f"airflow-outbox.{UUID(int=number)}" for number in (1, 2)}
    ledgers = {
        ("topic", f"{each}.ledger", operation, purpose)
        for each in own
        for operation, purpose in (("READ", "harvest"), ("WRITE", "harvest"), ("CREATE", "init"))
    }
    assert rows >= ledgers
    assert {name.rpartition(".0.")[0] for resource, name, *_ in rows if resource == "transactional-id"} == own
    # Nobody elects for one outbox alone.
    assert not {row for row in rows if row[0] == "group"} - OF_LIST
    assert {row[2] for row in rows if row[1] in {f"{each}.leader" for each in own}} == {"CREATE"}


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        (
            "exactly_once",
            {
                ("topic", "airflow-outbox.*", "READ", "harvest"),
                ("topic", "airflow-outbox.*", "WRITE", "harvest"),
                ("topic", "airflow-outbox.*", "CREATE", "init"),
                ("topic", "airflow-outbox.*", "DESCRIBE_CONFIGS", "check"),
                ("transactional-id", "airflow-outbox.*", "WRITE", "harvest"),
            },
        ),
        ("at_least_once", {("topic", "airflow-outbox.*", "CREATE", "init")}),
    ],
)
def test_a_pattern_means_outboxes_that_nobody_knows_yet(delivery: str, expected: set[tuple[str, ...]]) -> None:
    assert rows_of(list_of("tenant_*.outbox", delivery=delivery), may_grow=True) == OF_LIST | expected
