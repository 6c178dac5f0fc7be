"""Names of staging tables fit what Postgres allows, whatever the outbox is called."""

from __future__ import annotations

import pytest

from airflow_outbox.names import OutboxName
from airflow_outbox.spark.staging import _MAX_IDENTIFIER_BYTES, _TOKEN_BYTES, _prefix


@pytest.mark.parametrize("table", ["outbox", "x" * 55, '"' + "ü" * 27 + '"'])
def test_a_name_keeps_within_the_limit(table: str) -> None:
    prefix = _prefix(OutboxName.parse(table))
    assert prefix.endswith("_staging_")
    assert len(prefix.encode()) + 2 * _TOKEN_BYTES <= _MAX_IDENTIFIER_BYTES


def test_a_name_begins_like_the_outbox() -> None:
    assert _prefix(OutboxName.parse("shop.events")) == "events_staging_"
