"""No record has an effect on a terminal; and text for Postgres fits into every encoding."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import yaml

from airflow_outbox.sql import migrations, script
from airflow_outbox.values.terminal import as_json, as_yaml, escaped

HOSTILE = "\x1b[2J\x7f\x9b\u202e\udcffé"
FILES = sorted(entry.name for entry in files("airflow_outbox.sql").iterdir() if entry.name.endswith(".sql"))


def test_what_is_not_printable_is_escaped() -> None:
    assert escaped(HOSTILE) == "\\x1b[2J\\x7f\\x9b\\u202e\\udcffé"
    assert escaped("as it is: é [/x]") == "as it is: é [/x]"


def test_json_and_yaml_hold_the_same_and_only_what_is_printable() -> None:
    value = {"key": HOSTILE, "plain": "é"}
    assert as_json(value).isprintable()
    assert json.loads(as_json(value)) == value
    assert as_yaml(value).replace("\n", "").isprintable()
    assert as_yaml({"plain": "é"}) == "plain: é\n"
    assert yaml.safe_load(as_yaml({"key": "\x1b[2J\x7f"})) == {"key": "\x1b[2J\x7f"}


@pytest.mark.parametrize("name", FILES)
def test_statements_fit_into_every_encoding(name: str) -> None:
    assert script(name).isascii()


def test_migrations_fit_into_every_encoding() -> None:
    assert all(text.isascii() for text in migrations().values())
