"""Hooks: an outbox through Airflow's connections."""

from __future__ import annotations

from airflow_outbox.version_compat import require_airflow_3

require_airflow_3()
