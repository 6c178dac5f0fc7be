"""Values of a YAML file that come from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.yaml_file import read_yaml

ENVIRONMENT = {"HOST": "db", "EMPTY": "", "SECRET": "a$b}${HOST}", "SHARDS": "4"}


def read(tmp_path: Path, text: str) -> object:
    file = tmp_path / "outbox.yaml"
    file.write_text(text)
    return read_yaml(file, environment=ENVIRONMENT)


def test_a_variable_stands_for_its_value_and_is_not_read_again(tmp_path: Path) -> None:
    text = "a: host=${HOST} port=${EMPTY}\nb: {c: ['${SECRET}', 1, true]}\n${HOST}: '$${HOST} $HOST $5'\n"
    assert read(tmp_path, text) == {
        "a": "host=db port=",
        "b": {"c": ["a$b}${HOST}", 1, True]},
        "${HOST}": "${HOST} $HOST $5",
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("${NOT_THERE}", "the environment variable NOT_THERE is not set. Set it"),
        ("${not there}", r"not the name of an environment variable"),
        ("${HOST", r"Write \$\$\{ where"),
        ("${}", "not the name"),
    ],
)
def test_what_is_not_set_is_named_with_its_setting_and_no_value(tmp_path: Path, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"outbox\.yaml: kafka\.sasl\.password: .*{says}") as raised:
        read(tmp_path, f"kafka: {{sasl.password: 's3cret {value}'}}\n")
    assert "s3cret" not in str(raised.value)


def test_numbers_may_come_from_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDS", "4")
    file = tmp_path / "outbox.yaml"
    file.write_text("data_source: dbname=x\nkafka: {bootstrap.servers: h}\nshards: ${SHARDS}\n")
    assert HarvestConfig.from_yaml(file).shards == 4
