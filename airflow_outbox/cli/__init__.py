"""The command `airflow-outbox`."""

from __future__ import annotations

from airflow_outbox.cli.root_command import main

__all__ = ["main"]
