"""Stashing over Django's own connection, in requests of a small project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg

from airflow_outbox import Ticket
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

TESTS = Path(__file__).resolve().parents[1]


def test_events_are_stashed_by_the_requests_that_succeed(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        environment = os.environ | {
            "SHOP_DATABASE": database,
            "DJANGO_SETTINGS_MODULE": "support.django_shop.settings",
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        }
        run = subprocess.run(
            [sys.executable, "-m", "support.django_shop.run"], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        first, failed, second, *alone = json.loads(run.stdout)
        assert failed == 500
        assert alone == ["AutocommitError"] * 2  # no transaction is open outside of requests
        rows = connection.execute("SELECT kafka_key, kafka_value, transaction_id::text FROM outbox ORDER BY id")
        value = '{"state": "paid", "of": "100%"}'
        assert rows.fetchall() == [("1", value, str(Ticket.parse(each).transaction_id)) for each in (first, second)]
        assert connection.execute("SELECT id FROM django_shop_order").fetchall() == [(1,)]
