"""Outboxes that the page shows, and its connections to their database."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.ui import pages
from airflow_outbox.ui.outboxes import OutboxKey
from airflow_outbox.ui.pages import ListedOutbox
from airflow_outbox.ui.query_pool import QueryPool
from airflow_outbox.ui.rendering import environment


@pytest.fixture(name="pool")
def page_pool(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryPool]:
    """The page's connections, all of them to the test's database."""
    made = QueryPool(lambda conn_id: database)
    monkeypatch.setattr(pages, "pool", lambda: made)
    yield made
    made.close()


def make_outboxes(database: str, count: int) -> list[OutboxKey]:
    keys = [OutboxKey("pg", f"outbox_{number}") for number in range(count)]
    with connect(database, purpose="test") as connection, connection.transaction():
        for key in keys:
            init_outbox(connection, key.outbox, key_type="varchar(100)")
    return keys


def rendered(rows: list[ListedOutbox]) -> str:
    given = {"base": "", "status": 200, "rows": rows, "troubled": len(rows), "problems": ()}
    return environment().get_template("all.html").render(given)


def page_backends(database: str) -> list[int]:
    """The processes that serve the page's connections."""
    with psycopg.connect(database) as connection:
        query = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name = 'airflow-outbox page' AND datname = current_database()"
        )
        return [pid for (pid,) in connection.execute(query)]
