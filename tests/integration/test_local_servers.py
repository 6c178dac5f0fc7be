"""`./dev servers`, at other ports: what it prints is enough to go on, and what the servers hold is kept."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.ports import free_port

PROGRAM = [sys.executable, "-m", "airflow_outbox.demo.local_servers"]


@contextmanager
def servers(folder: Path, ports: tuple[int, int]) -> Iterator[tuple[str, AdminClient]]:
    """The servers; Postgres' connection string as it is printed, and Kafka's admin."""
    options = ["--postgres-port", str(ports[0]), "--kafka-port", str(ports[1]), "--folder", str(folder)]
    with subprocess.Popen([*PROGRAM, *options], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            first, second = (next(program.stdout) for _ in range(2))
            source = re.fullmatch(r"Postgres: (host=.*)\n", first)
            brokers = re.fullmatch(r"Kafka: +(\S+)\n", second)
            assert source is not None
            assert brokers is not None
            yield source[1], AdminClient({"bootstrap.servers": brokers[1]})
        finally:
            program.send_signal(signal.SIGINT)
            program.communicate()
    assert program.returncode == 0


def test_they_serve_until_they_are_interrupted_and_keep_what_they_hold(server_folder: Path, topic_prefix: str) -> None:
    folder = server_folder / f"{topic_prefix}trial"
    with servers(folder, (free_port(), free_port())) as (source, admin):
        with psycopg.connect(source) as connection:
            connection.execute("CREATE TABLE orders ()")
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
    with servers(folder, (free_port(), free_port())) as (source, admin):
        with psycopg.connect(source) as connection:
            connection.execute("SELECT FROM orders")
        assert "orders" in admin.list_topics(timeout=PATIENCE).topics
