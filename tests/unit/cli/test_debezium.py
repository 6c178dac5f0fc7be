"""`debezium` with wrong input: it is told before the database is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.cli import main


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("debezium init --wait soon", 2, "'soon': give a duration such as 5s or 1m"),
        ("debezium drop --wait -1s", 2, "give a duration such as 5s or 1m"),
        ("debezium drop --wait 0", 2, "give a duration such as 5s or 1m"),
        ("debezium check --output xml", 2, "--output"),
        ("debezium init now", 2, "unexpected extra argument"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, command: str, status: int, says: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "-f", str(written(tmp_path))])
    assert result.exit_code == status, result.output
    assert says in result.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "slot.name"], "--set slot.name: give a connector's setting and its value"),
        (["--set", "=shop"], "--set =shop: give a connector's setting and its value"),
        (["--worker", "worker.properties"], "--worker goes with --connector, or with --set"),
        (["--connector", "nowhere.json"], "nowhere.json can't be read"),
        (["--connector", "list.json"], "list.json holds no connector"),
    ],
)
def test_a_connector_that_can_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    (tmp_path / "list.json").write_text("[1]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("airflow_outbox.cli.options.connect", lambda *_, **__: Unused())
    result = CliRunner().invoke(main, ["debezium", "init", *options, "-f", str(written(tmp_path))])
    assert result.exit_code == 1, result.output
    assert says in result.output


class Unused:
    """A connection that nobody asks."""

    def close(self) -> None:
        pass


def written(folder: Path) -> Path:
    file = folder / "outbox.yaml"
    file.write_text("data_source: host=127.0.0.1 port=1\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n")
    return file
