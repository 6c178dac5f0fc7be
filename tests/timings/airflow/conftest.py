"""The fixtures of Airflow's folder: an Airflow of this folder's own."""

from __future__ import annotations

from integration.airflow.conftest import (  # noqa: F401
    airflow,
    backup,
    metadata,
    outboxes,
    statsd,
)
