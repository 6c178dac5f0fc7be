"""The configuration: strict, with errors that say what to do and never show a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig

SETTINGS: dict[str, Any] = {
    "data_source": "password=s3cret",
    "kafka": {"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "s3cret"},
}


def problem(**changes: Any) -> str:
    settings = {name: value for name, value in {**SETTINGS, **changes}.items() if value is not ...}
    with pytest.raises(ConfigurationError) as caught:
        HarvestConfig.validated(settings, source="outbox.yaml")
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    config = HarvestConfig.validated(SETTINGS, source="here")
    assert config.outbox_table == "outbox"
    assert (config.limits.heartbeat_timeout, config.limits.session_timeout) == (2, 6)
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ({"outbox_tabel": "o"}, "outbox_table"),
        ({"datasource": "x"}, "data_source"),
        ({"limits": {"mark_record": 1}}, "limits.mark_records"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(unknown: dict[str, Any], nearest: str) -> None:
    text = problem(**unknown)
    assert "unknown setting" in text
    assert f"the nearest known one is {nearest}" in text


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("2s", 2), ("1.5s", 1.5), (0.25, 0.25), (3, 3)])
def test_durations(text: object, seconds: float) -> None:
    config = HarvestConfig.validated({**SETTINGS, "limits": {"heartbeat_timeout": text}}, source="here")
    assert config.limits.heartbeat_timeout == seconds


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_source": ...}, "data_source is missing"),
        ({"kafka": {}}, "kafka: bootstrap.servers is missing"),
        ({"limits": {"heartbeat_timeout": "soon"}}, "limits.heartbeat_timeout: give a duration such as 100ms"),
        ({"limits": {"heartbeat_timeout": "6s"}}, "must be below session_timeout"),
        ({"limits": {"mark_records": 0}}, "limits.mark_records"),
        ({"outbox_table": "a b"}, "is not a table's name"),
        ({"outbox_table": "o" * 60}, "too long"),
        ({"delivery": "twice"}, "at_least_once"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**changes)


def test_yaml(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    with pytest.raises(ConfigurationError, match="can't read"):
        HarvestConfig.from_yaml(file)
    file.write_text("data_source: [")
    with pytest.raises(ConfigurationError, match=r"outbox.yaml, line \d+: not YAML"):
        HarvestConfig.from_yaml(file)
    file.write_text("just text")
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        HarvestConfig.from_yaml(file)
    file.write_text("data_source: dbname=app\nkafka: {bootstrap.servers: here}\nlimits: {poll_interval: 20ms}\n")
    assert HarvestConfig.from_yaml(file).limits.poll_interval == 0.02
