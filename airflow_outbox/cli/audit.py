"""`airflow-outbox audit`: an audit in this process, which shows how far it is."""

from __future__ import annotations

from airflow_outbox.audit.findings import AuditReport
from airflow_outbox.audit.in_process import audit
from airflow_outbox.audit.run import AuditRequest
from airflow_outbox.cli.progress import bars
from airflow_outbox.harvest.config import HarvestConfig


def audit_with_bars(config: HarvestConfig, request: AuditRequest) -> AuditReport:
    """Audit with a bar for the topics and one for the table. Raises what `audit` raises."""
    with bars() as tell:
        return audit(config, request, tell=tell)
