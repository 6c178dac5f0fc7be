"""Shared by tests of audits: an outbox whose records are kept, and hands that can publish them well or badly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner
from confluent_kafka import Producer
from support.harvesting import PATIENCE, Outbox, make_outbox

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main

ARCHIVE = """
CREATE TABLE archive (LIKE outbox, PRIMARY KEY (id));
CREATE FUNCTION keep_stashed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
    INSERT INTO archive SELECT * FROM stashed;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_stashed AFTER INSERT ON outbox
REFERENCING NEW TABLE AS stashed FOR EACH STATEMENT EXECUTE FUNCTION keep_stashed();
"""


@dataclass(frozen=True, slots=True)
class Archived:
    """An outbox with an archive."""

    outbox: Outbox
    file: Path

    @property
    def topic(self) -> str:
        return self.outbox.topic

    def stash(self, *records: OutboxRecord) -> None:
        """In one transaction."""
        with psycopg.connect(self.outbox.database, autocommit=True) as connection, connection.transaction():
            stash(connection, records)

    def record(self, number: int, *, key: str = "k", **more: Any) -> OutboxRecord:
        return OutboxRecord(self.topic, key, str(number), {"n": str(number)}, **more)

    def publish(self, records: Sequence[OutboxRecord], *, partition: int = 0, **settings: Any) -> None:
        """As a harvester would, or not."""
        producer = Producer({"bootstrap.servers": self.outbox.bootstrap, "enable.idempotence": True, **settings})
        errors: list[object] = []
        for record in records:
            producer.produce(
                record.topic,
                key=record.key,
                value=record.value,
                headers=record.header_pairs(),
                partition=partition,
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(PATIENCE) == 0
        assert errors == [None] * len(records)

    def purge(self) -> None:
        """Let nothing wait."""
        self.execute("DELETE FROM outbox")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            connection.execute(statement.encode())

    def audit(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        """The command's result."""
        command = ["audit", "-f", str(self.file), "--table", "archive", "--output", "json", *arguments]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == status, result.output
        report: dict[str, Any] = json.loads(result.output)
        return report


def counts(report: dict[str, Any]) -> dict[str, int]:
    names = ("missing", "doubled", "reordered", "torn", "foreign", "waiting", "expired", "later")
    return {name: report[name] for name in names if report[name]}


def make_archived(database: str, *, bootstrap: str, topic: str, folder: Path) -> Archived:
    """Make the outbox, with one data topic, and its archive; `folder` is where the configuration goes."""
    outbox = make_outbox(database, bootstrap=bootstrap, topic=topic)
    file = folder / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    archived = Archived(outbox, file)
    archived.execute(ARCHIVE)
    return archived
