"""The environment of processes that this package starts."""

from __future__ import annotations

import os


def without_airflow() -> dict[str, str]:
    """Return this process' environment without Airflow's: connections, the metadata database's address, keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
