"""Links from tasks to the page of their outbox."""

from __future__ import annotations

from airflow_outbox.version_compat import require_airflow_3

require_airflow_3()
