"""`positions` with wrong input: it is told before anything is connected."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.cli import main

ONE = "data_source: host=127.0.0.1 port=1\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n"
TWO = """data_source: host=127.0.0.1 port=1
clusters:
  primary: {bootstrap.servers: '127.0.0.1:1'}
  west: {bootstrap.servers: '127.0.0.1:2'}
"""
ENABLED = f"{TWO}positions: {{enabled: true}}\n"
LOOKUP = "positions lookup --topic t --partition 0"


@pytest.mark.parametrize(
    ("text", "command", "status", "says"),
    [
        (ONE, "positions status", 1, "the configuration has one. Name others under `clusters`"),
        (TWO, "positions status", 1, "positions.enabled is not set"),
        (TWO, f"{LOOKUP} --from primary --to west --offset 1", 1, "Set it to true, run `airflow-outbox init`"),
        (ENABLED, f"{LOOKUP} --from primary --to west", 2, "give --offset or --time"),
        (ENABLED, f"{LOOKUP} --from primary --to west --offset 1 --time 2026-01-01", 2, "give --offset or --time"),
        (ENABLED, f"{LOOKUP} --from primary --to west --offset -1", 2, "--offset"),
        (
            ENABLED,
            f"{LOOKUP} --from primary --to west --time noon",
            1,
            "--time: 'noon' is not an ISO 8601 time, such as",
        ),
        (ENABLED, f"{LOOKUP} --from primary --to east --offset 1", 1, "has no cluster east. It has primary, west"),
        (ENABLED, f"{LOOKUP} --from east --to west --offset 1", 1, "has no cluster east. It has primary, west"),
        (ENABLED, f"{LOOKUP} --from west --to west --offset 1", 1, "--from and --to are both west. Give two clusters"),
        (ENABLED, "positions move orders --to east", 1, "has no cluster east. It has primary, west"),
        (ENABLED, "positions move orders", 2, "--to"),
        (ENABLED, "positions move --to west", 2, "GROUP"),
        (ENABLED, "positions move orders --to west --wait -1", 2, "--wait"),
        (ENABLED, "positions run", 1, "positions.groups names no groups. Give patterns"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, text: str, command: str, status: int, says: str) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, [*command.split(), "-f", str(file)])
    assert result.exit_code == status, result.output
    assert says in result.output
