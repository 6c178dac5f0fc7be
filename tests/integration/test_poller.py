"""The page for those who come from a poller of their own, followed while an application writes: there, and back again.

A consumer sees each event once, and those of a key in their order.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo
from psycopg.errors import InvalidParameterValue
from support.harvesting import COMMAND, Outbox, Process, make_outbox, wait_until

from airflow_outbox.cli.root_command import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "poller.md"
KEYS = 5
INSERT = "INSERT INTO app_events (entity, entity_id, kind, body) VALUES ('order', %s, 'paid', %s::text::jsonb)"
A_FEW = 30
_SQL = re.compile(r"^```sql title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^airflow-outbox (.+)$", re.MULTILINE)


class Shop:
    """An application with an events table, its own role, and a poller; what the page says is done to its database."""

    def __init__(self, outbox: Outbox, role: str, file: Path) -> None:
        self.outbox = outbox
        self.role = role
        self.file = file
        self.statements = dict(_SQL.findall(PAGE.read_text("utf-8")))
        self.commands = {command.split()[0]: command for command in _COMMANDS.findall(PAGE.read_text("utf-8"))}
        self.polled = 0

    def follow(self, title: str) -> None:
        """Run what a block of the page holds, as the tables' owner."""
        text = self.statements[title].replace("'shop.' || entity", f"'{self.outbox.topic}'")
        text = text.replace("lock_timeout = '5s'", "lock_timeout = '1min'")  # a busy machine may hold up a writer
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            connection.execute(text.replace(" TO app;", f" TO {self.role};").encode())

    def command(self, name: str) -> None:
        """Run a command of the page."""
        own = {"outbox.yaml": str(self.file), "app": self.role}
        words = [own.get(word, word) for word in self.commands[name].split()]
        main(words, standalone_mode=False)

    @contextmanager
    def writing(self, first_key: int) -> Iterator[None]:
        """Insert events, in transactions of a few, until the end; half of them are rolled back."""
        with self._repeating(lambda number: self._write(first_key, number)):
            yield

    def _write(self, first_key: int, number: int) -> None:
        with psycopg.connect(make_conninfo(self.outbox.database, user=self.role, password="p")) as connection:
            for key in range(first_key, KEYS, 2):
                connection.execute(INSERT, [key, str(number)])
            if number % 2:
                connection.rollback()

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Run the poller: it sends what is not marked, then marks it."""
        producer = Producer({"bootstrap.servers": self.outbox.bootstrap, "enable.idempotence": True})
        with (
            psycopg.connect(self.outbox.database) as connection,
            self._repeating(lambda _: self._poll(connection, producer)),
        ):
            yield

    def _poll(self, connection: psycopg.Connection[tuple[object, ...]], producer: Producer) -> None:
        rows = connection.execute(
            "SELECT id, entity_id, body::text FROM app_events WHERE sent_at IS NULL ORDER BY id LIMIT 50 FOR UPDATE"
        ).fetchall()
        for _, key, body in rows:
            producer.produce(self.outbox.topic, key=str(key), value=str(body))
        producer.flush()
        connection.execute("UPDATE app_events SET sent_at = now() WHERE id = ANY(%s)", [[row[0] for row in rows]])
        connection.commit()
        self.polled += len(rows)

    @contextmanager
    def _repeating(self, step: Callable[[int], None]) -> Iterator[None]:
        ending, errors = threading.Event(), list[Exception]()

        def run() -> None:
            number = 0
            try:
                while not ending.is_set():
                    step(number)
                    number += 1
                    time.sleep(0.005)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
        assert errors == []

    def count(self, table: str, condition: str = "true") -> int:
        return int(self.outbox.query(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0])

    def left(self) -> int:
        return int(self.outbox.query(self.statements["left.sql"])[0][0])


@pytest.fixture
def shop(database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Shop]:
    # The poller's producer has librdkafka's own partitioner.
    producer = {"partitioner": "consistent_random"}
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "orders", kafka_producer=producer)
    role, file = f"shop_{uuid4().hex[:8]}", tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    shop = Shop(outbox, role, file)
    outbox.query(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    try:
        shop.follow("events.sql")
        outbox.query(f"GRANT INSERT, SELECT ON app_events TO {role}")
        yield shop
    finally:
        outbox.query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_there_and_back_again_while_the_application_writes(shop: Shop) -> None:
    with shop.writing(0), shop.writing(1):
        with shop.polling():
            wait_until(lambda: shop.polled > A_FEW)
            for command in ("init", "grant", "pause"):
                shop.command(command)
            shop.follow("mapping.sql")
            assert shop.outbox.query(shop.statements["look.sql"]) == []
            shop.follow("switch.sql")
            wait_until(lambda: shop.left() == 0)
            wait_until(lambda: shop.outbox.left() > A_FEW)
        by_the_poller = shop.polled
        harvester = Process([*COMMAND, "harvest", "-f", str(shop.file)])
        try:
            harvester.wait_for("took_over")
            shop.command("resume")
            wait_until(lambda: harvester.newest_progress.get("published", 0) > A_FEW)
            assert shop.polled == by_the_poller
            shop.follow("back.sql")
            wait_until(lambda: shop.outbox.left() == 0)
            wait_until(lambda: shop.left() > 0)
            with shop.polling():
                wait_until(lambda: shop.polled > by_the_poller + A_FEW)
        finally:
            harvester.end()
    with shop.polling():
        wait_until(lambda: shop.left() == 0)
    expected = shop.outbox.query("SELECT entity_id::text, body::text::bigint FROM app_events ORDER BY id")
    seen = shop.outbox.by_key()
    assert seen == {key: [number for other, number in expected if other == key] for key in {key for key, _ in expected}}
    assert len(seen) == KEYS


def test_a_row_that_the_mapping_can_not_map_is_refused_where_it_is_inserted(shop: Shop) -> None:
    shop.command("init")
    shop.follow("mapping.sql")
    shop.follow("switch.sql")
    shop.command("grant")
    with psycopg.connect(make_conninfo(shop.outbox.database, user=shop.role, password="p")) as connection:
        shop.outbox.query("ALTER TABLE app_events ALTER entity_id DROP NOT NULL")
        with pytest.raises(InvalidParameterValue, match="key: null"):
            connection.execute("INSERT INTO app_events (entity, kind) VALUES ('order', 'paid')")
    assert shop.outbox.left() == shop.count("app_events") == 0


def test_a_row_that_is_not_inserted_after_all_is_not_stashed(shop: Shop) -> None:
    for step in ("init", "mapping.sql", "switch.sql"):
        (shop.follow if step.endswith(".sql") else shop.command)(step)
    insert = "INSERT INTO app_events (id, entity, entity_id, kind) OVERRIDING SYSTEM VALUE VALUES (1, 'o', 7, 'paid')"
    for _ in range(2):
        shop.outbox.query(f"{insert} ON CONFLICT DO NOTHING")
    assert shop.outbox.left() == 1
    assert shop.outbox.query("SELECT kafka_header_keys, kafka_header_values FROM outbox") == [
        (["kind", "event_id"], ["paid", "1"])
    ]
