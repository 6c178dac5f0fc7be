"""`reshard`, `rename`, `harvest` and `clusters` with wrong input that needs no server to be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.cli import main


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("reshard", "give a number of shards, or --withdraw"),
        ("reshard 4 --withdraw", "give a number of shards, or --withdraw"),
        ("reshard 0", "0 is not in the range"),
        ("reshard 65", "65 is not in the range"),
        ("reshard four", "'four' is not a valid integer"),
        ("rename outbox", "Missing argument 'NEW'"),
        ("rename", "Missing argument 'OLD'"),
        ("clusters detach", "Missing argument 'CLUSTER'"),
        ("clusters reset west --wait -1", "--wait"),
        ("clusters attach west --accept-loss", "No such option"),
        ("harvest --metrics-host 0.0.0.0", "--metrics-host goes with --metrics-port"),
        ("harvest --metrics-port 70000", "--metrics-port"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, command: str, says: str) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("data_source: host=127.0.0.1 port=1\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n")
    result = CliRunner().invoke(main, [*command.split(), "-f", str(file)])
    assert result.exit_code == 2, result.output
    assert says in result.output
