"""Connections as Airflow finds them in its environment, and harvesting processes that are scripts."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "p'a\\ss word-7Q"

Connect = Callable[..., None]
Script = Callable[[str], tuple[str, ...]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Give Airflow a connection: `connect("postgres_default", conn_type="postgres", host=…)`."""

    def make(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return make


@pytest.fixture
def connections(connect: Connect) -> None:
    """The default connections, complete."""
    connect(
        "postgres_default",
        conn_type="postgres",
        host="db.example",
        port=5433,
        login="app",
        password=PASSWORD,
        schema="shop",
        extra={"sslmode": "verify-full", "options": "-c search_path=sales", "cursor": "dictcursor"},
    )
    connect(
        "kafka_default",
        conn_type="kafka",
        extra={"bootstrap.servers": "kafka.example:9092", "sasl.username": "app", "sasl.password": "sasl-secret-9Z"},
    )


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A command that runs a Python script in the place of the harvesting process; `tell` writes one event."""
    prelude = """
        import json, os, signal, sys, time
        def tell(event, **fields):
            print(json.dumps({"event": event, **fields}), flush=True)
    """

    def make(text: str) -> tuple[str, ...]:
        path = tmp_path / "child.py"
        path.write_text(textwrap.dedent(prelude) + textwrap.dedent(text))
        return (sys.executable, str(path))

    return make


@pytest.fixture
def child(script: Script, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let every trigger run this script for a harvesting process."""

    def use(text: str) -> None:
        monkeypatch.setattr("airflow_outbox.triggers.harvest.OutboxHarvestTrigger.command", script(text))

    return use
