"""Entries of a list of outboxes: names and patterns."""

from __future__ import annotations

import pytest

from airflow_outbox.values.outbox_list import OutboxPattern, list_id

PATH = ("app", "public")


@pytest.mark.parametrize(
    ("entry", "schema", "table", "is_meant"),
    [
        ("tenant_*.outbox", "tenant_7", "outbox", True),
        ("tenant_*.outbox", "tenant_7", "outbox2", False),
        ("tenant_*.outbox", "atenant_7", "outbox", False),
        ("Tenant_?.Outbox", "tenant_7", "outbox", True),
        ("tenant_?.outbox", "tenant_77", "outbox", False),
        ("outbox", "public", "outbox", True),
        ("outbox", "elsewhere", "outbox", False),
        ("*_outbox", "app", "orders_outbox", True),
        ("*.*", "x", "y", True),
        ('"Raw"."out*box"', "Raw", "out*box", True),
        ('"Raw"."out*box"', "Raw", "out-box", False),
        ('"a[b]".outbox', "a[b]", "outbox", True),
    ],
)
def test_what_an_entry_means(entry: str, schema: str, table: str, is_meant: bool) -> None:
    assert OutboxPattern.parse(entry).matches(schema, table, path=PATH) is is_meant


@pytest.mark.parametrize(
    ("entry", "is_a_name"), [("shop.outbox", True), ("outbox", True), ("t_*.outbox", False), ('"a*".outbox', True)]
)
def test_a_name_means_one_outbox(entry: str, is_a_name: bool) -> None:
    assert OutboxPattern.parse(entry).is_a_name is is_a_name


@pytest.mark.parametrize("entry", ["", "a.b.c", "a b", "tenant-1.outbox", '"'])
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(ValueError, match="is no outbox, and no pattern"):
        OutboxPattern.parse(entry)


def test_members_with_the_same_entries_in_the_same_database_find_one_another() -> None:
    own = list_id(["a.outbox", "b.*"], system_identifier=7, database_oid=5)
    assert own == list_id(["b.*", "a.outbox", "b.*"], system_identifier=7, database_oid=5)
    others = [
        list_id(["a.outbox"], system_identifier=7, database_oid=5),
        list_id(["a.outbox", "b.*"], system_identifier=8, database_oid=5),
        list_id(["a.outbox", "b.*"], system_identifier=7, database_oid=6),
    ]
    assert own not in others
