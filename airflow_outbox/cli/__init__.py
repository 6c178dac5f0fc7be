"""The command `airflow-outbox`."""

from __future__ import annotations

from airflow_outbox.cli.root_command import main, program

__all__ = ["main", "program"]
