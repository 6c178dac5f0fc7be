"""An audit in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from airflow_outbox.audit.comparison import Comparison
from airflow_outbox.audit.findings import AuditReport
from airflow_outbox.audit.run import AuditRequest, AuditRun
from airflow_outbox.audit.topics import arrived
from airflow_outbox.harvest.config import HarvestConfig

AuditProgress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much in all at most."""
_Item = TypeVar("_Item")
_OFTEN = 1_000


def audit(config: HarvestConfig, request: AuditRequest, *, tell: AuditProgress = lambda *_: None) -> AuditReport:
    """Compare a table of what was stashed with its topics; memory is bounded, disk is used (where TMPDIR says). `tell`
    hears how far it is.

    Raises ConfigurationError, OutboxMissingError, PostgresError, KafkaError.
    """
    with AuditRun(config, request) as scene, Comparison(pinned=scene.pinned) as comparison:
        offsets = sum(span.stop - span.start for span in scene.spans)
        found = arrived(scene.kafka, scene.spans, ignored_headers=request.ignored_headers)
        comparison.add_arrived(_told(found, "records in Kafka", offsets, tell))
        first, last = scene.table.ids()
        rows = scene.table.rows(scene.reading(), first=first, last=last)
        comparison.add_stashed(_told(rows, "rows in Postgres", last - first + 1, tell))
        return scene.report(comparison.findings(examples=request.examples))


def _told(items: Iterable[_Item], what: str, total: int, tell: AuditProgress) -> Iterator[_Item]:
    """Pass the items on, and tell how many there were. Offsets and ids have gaps, so it may end early."""
    tell(what, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        if number % _OFTEN == 0:
            tell(what, min(number, total), total)
    tell(what, total, total)
