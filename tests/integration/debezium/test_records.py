"""The trigger stashes, of every case, the records that a real Debezium published of the same rows."""

from __future__ import annotations

import psycopg
import pytest
from support.debezium import insert_rows, make_table, recorded, stashed
from support.debezium_cases import CASES, Case

from airflow_outbox.debezium.operating import switch
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect


def config_of(database: str, outbox: str) -> HarvestConfig:
    settings = {"data_source": database, "outbox_table": outbox, "kafka": {"bootstrap.servers": "127.0.0.1:1"}}
    return HarvestConfig.validated(settings, source="test")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_real_debezium_published(connection: psycopg.Connection[str], database: str, case: Case) -> None:
    outbox = make_table(connection, case)
    with connect(database, purpose="test") as own:
        switch(own, config_of(database, outbox), settings=case.connector(), table=None, wait=120)
    insert_rows(connection, case)
    assert [each.as_json() for each in stashed(connection, outbox)] == [each.as_json() for each in recorded(case)]
