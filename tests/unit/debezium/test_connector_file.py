"""A connector's settings are read from the forms in which people keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_outbox.debezium.connector_file import read_settings
from airflow_outbox.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"connector.class": "C", "tasks.max": 1, "a.b": true}'),
        ("c.json", '{"name": "shop", "config": {"connector.class": "C", "tasks.max": "1", "a.b": "true"}}'),
        ("c.yaml", "kind: KafkaConnector\nspec: {class: C, config: {tasks.max: 1, a.b: true}}"),
        ("c.properties", "# a comment\nconnector.class = C\ntasks.max:1\n\n! another\na.b=\\\n  true\n"),
    ],
)
def test_forms(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_settings(file) == {"connector.class": "C", "tasks.max": "1", "a.b": "true"}


def test_properties_have_escapes(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text("table.include.list=public\\\\.events\ntransforms.o.route.topic.regex=a\\:(.*)\n")
    assert read_settings(file) == {
        "table.include.list": "public\\.events",
        "transforms.o.route.topic.regex": "a:(.*)",
    }


@pytest.mark.parametrize("text", ["[]", "{", '{"some": 1}', "17"])
def test_what_is_no_connector(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="Give"):
        read_settings(file)
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_settings(tmp_path / "missing.json")
