"""The verdict on an outbox, by its configuration alone: no harvester runs in this process."""

from __future__ import annotations

from contextlib import closing

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.verdict_facts import read_facts
from airflow_outbox.values.judging import judge, unknown
from airflow_outbox.values.verdict import Verdict


def read_verdict(config: HarvestConfig) -> Verdict:
    """Return how the outbox is doing: UNKNOWN if Postgres can't be reached, or the role may not look."""
    try:
        with closing(connect(config.data_source, purpose="verdict")) as connection:
            return judge(read_facts(connection, config.name), config.thresholds)
    except OutboxError as error:
        return unknown(str(error))
