"""An outbox's name, as it is written and as Postgres stores it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from airflow_outbox.errors import InvalidNameError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.names import OutboxName, is_an_outboxs_own


@pytest.mark.parametrize(
    ("text", "schema", "table", "shard"),
    [
        ("outbox", None, "outbox", '"outbox_shard"'),
        ("App.Outbox", "app", "outbox", '"app"."outbox_shard"'),
        ('"App"."Out.box"', "App", "Out.box", '"App"."Out.box_shard"'),
        ('"a""b"', None, 'a"b', '"a""b_shard"'),
        ("größe", None, "größe", '"größe_shard"'),
    ],
)
def test_names(text: str, schema: str | None, table: str, shard: str) -> None:
    name = OutboxName.parse(text)
    assert (name.schema, name.table, name.text("shard")) == (schema, table, shard)
    assert OutboxName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "a b", "a.b.c", "1a", '"open', "a;drop table b", '""', "a."])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidNameError, match="double quotes"):
        OutboxName.parse(text)


def test_room_for_the_tables_beside_it() -> None:
    assert OutboxName.parse("o" * 53).table == "o" * 53
    with pytest.raises(InvalidNameError, match="at most 53 bytes"):
        OutboxName.parse("o" * 54)
    with pytest.raises(InvalidNameError, match="too long"):
        OutboxName.parse('"' + "ö" * 28 + '"')


def test_the_topics_of_any_outbox_are_known_by_their_default_names() -> None:
    config = HarvestConfig.validated({"data_source": "", "kafka": {"bootstrap.servers": "h:1"}}, source="test")
    names = KafkaNames.of(config, uuid4())
    assert is_an_outboxs_own(names.leader_topic)
    assert is_an_outboxs_own(names.ledger_topic)
    for topic in (
        names.leader_group_id,
        names.ledger_topic + ".2",
        "my." + names.ledger_topic,
        "airflow-outbox.ledger",
    ):
        assert not is_an_outboxs_own(topic)
