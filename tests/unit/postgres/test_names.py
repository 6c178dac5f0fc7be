"""An outbox's name, as it is written and as Postgres stores it."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import InvalidNameError
from airflow_outbox.postgres.names import OutboxName


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
