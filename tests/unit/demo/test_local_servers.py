"""Servers for a trial, where something else listens already."""

from __future__ import annotations

import socket
from pathlib import Path

from click.testing import CliRunner

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.local_servers import is_taken, main


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        assert is_taken(port)
        options = ["--postgres-port", str(free_port()), "--kafka-port", str(port), "--folder", str(tmp_path / "s")]
        result = CliRunner().invoke(main, options)
    assert result.exit_code == 1
    assert f"something listens at 127.0.0.1:{port} already, so Kafka can't." in result.output
    assert "another --kafka-port" in result.output
    assert not (tmp_path / "s").exists()
    assert not is_taken(port)
