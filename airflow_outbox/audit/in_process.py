"""An audit in this process."""

from __future__ import annotations

from airflow_outbox.audit.comparison import Comparison
from airflow_outbox.audit.findings import AuditReport
from airflow_outbox.audit.run import AuditRequest, AuditRun
from airflow_outbox.audit.topics import arrived
from airflow_outbox.harvest.config import HarvestConfig


def audit(config: HarvestConfig, request: AuditRequest) -> AuditReport:
    """Compare a table of what was stashed with its topics; memory is bounded, disk is used (where TMPDIR says).

    Raises ConfigurationError, OutboxMissingError, PostgresError, KafkaError.
    """
    with AuditRun(config, request) as scene, Comparison(pinned=scene.pinned) as comparison:
        comparison.add_arrived(arrived(scene.kafka, scene.spans, ignored_headers=request.ignored_headers))
        first, last = scene.table.ids()
        comparison.add_stashed(scene.table.rows(scene.reading(), first=first, last=last))
        return scene.report(comparison.findings(examples=request.examples))
