"""Names of staging tables fit what Postgres allows, whatever the outbox is called."""

from __future__ import annotations

import pytest

from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.spark.staging import StagingRun


@pytest.mark.parametrize("table", ["outbox", "x" * 53, '"' + "ü" * 26 + '"'])
def test_a_name_keeps_within_the_limit(table: str) -> None:
    run = StagingRun(OutboxName.parse(table), "public", "0123abcd", CommitId("job", 0), is_stream=False)
    assert len(run.table(2**63 - 1).encode()) <= 63


@pytest.mark.parametrize("table", ["outbox", "x" * 53, '"' + "ü" * 26 + '"'])
@pytest.mark.parametrize("schema", ["public", "s" * 63, "ü" * 31])
def test_a_schema_for_staging_keeps_within_the_limit(table: str, schema: str) -> None:
    staging = OutboxName.parse(table).staging_schema(schema)
    assert len(staging.encode()) <= 63
    assert staging.endswith("_staging")
    assert staging != OutboxName.parse(table).staging_schema(schema[:-1] + "t")


def test_a_name_begins_like_the_outbox() -> None:
    run = StagingRun(OutboxName.parse("shop.events"), "shop", "0123abcd", CommitId("job", 0), is_stream=False)
    assert run.table(31) == "events_staging_0123abcd_1f"
