"""The examples of the API reference, run as they stand on real servers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import make_outbox

from airflow_outbox import OutboxRecord, Ticket
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.tickets.published import TicketState

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def follow(page: str, namespace: dict[str, Any]) -> None:
    """Run a page's blocks one after the other, as one program."""
    for block in _BLOCK.findall((REFERENCE / page).read_text("utf-8")):
        exec(compile(block, page, "exec", dont_inherit=True), namespace)


@pytest.fixture
def orders(database: str) -> str:
    """A database with the table of the examples; its connection string."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, state text NOT NULL)")
        connection.execute("INSERT INTO orders VALUES (17, 'new')")
    return database


def test_the_examples_for_writers_run(orders: str) -> None:
    with psycopg.connect(orders, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        init_outbox(connection, OutboxName.parse("shop.outbox"))
    with psycopg.connect(orders) as connection:
        namespace: dict[str, Any] = {"connection": connection, "data_source": orders}
        follow("stash.md", namespace)
        assert namespace["status"].left == 1
        assert isinstance(asyncio.run(namespace["deliver"](orders)), Ticket)
        [stashed] = connection.execute("SELECT array_agg(kafka_topic ORDER BY id) FROM shop.outbox").fetchall()
        assert stashed == (["orders", "carts", "orders", "orders"],)


def test_the_examples_of_errors_run(orders: str) -> None:
    namespace: dict[str, Any] = {}
    follow("errors.md", namespace)
    store, is_out = namespace["store"], namespace["is_out"]
    record = OutboxRecord("orders", "17", "{}")
    with psycopg.connect(orders, autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            assert store(connection, record) == "run `airflow-outbox init` first"
        init_outbox(connection, OutboxName.parse("outbox"))
        assert store(connection, record) == "open a transaction first"
        with connection.transaction():
            assert store(connection, OutboxRecord("no topic", "17", "{}")) == "record 0: correct its topic"
            ticket = Ticket.parse(store(connection, record))
        assert is_out(connection, ticket) is False


def test_the_examples_for_airflow_run(
    orders: str, kafka: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(orders, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
    make_outbox(orders, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", outbox_table="shop.outbox")
    server = conninfo_to_dict(orders)
    known = {"host": server["host"], "port": int(server["port"]), "schema": server["dbname"]}
    known |= {"login": server["user"], "password": server["password"]}
    monkeypatch.setenv("AIRFLOW_CONN_APP_DB", json.dumps({"conn_type": "postgres", **known}))
    brokers = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(brokers))
    namespace: dict[str, Any] = {}
    follow("airflow.md", namespace)
    assert namespace["is_reached"], namespace["message"]
    assert namespace["hook"].ticket_status(namespace["ticket"]).state is TicketState.WAITING
