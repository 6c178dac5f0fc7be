"""`airflow outbox …`: the commands of `airflow-outbox`, where Airflow's connections are the configuration."""

from __future__ import annotations

from airflow_outbox.version_compat import require_airflow_3

require_airflow_3()
