"""No room on a disk: whatever is refused then is said, nothing is lost or doubled, and it goes on when there is room.

A server may not make a file larger than a limit here. It meets that as it meets the end of a disk, and a test needs no
rights for it.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from hostile.conftest import MODES
from hostile.innocents import Innocents, strict_json
from support.harvesting import PATIENCE, Outbox, make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

MIB = 1024 * 1024
LARGE = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT %s, 'h', lpad(number::text, 1900, 'x'), '{}', '{}' FROM generate_series(1, %s) AS number"""


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A server that is started here can't make a file larger than this, as long as it runs."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_large(outbox: Outbox, records: int) -> None:
    with psycopg.connect(outbox.database) as connection:
        connection.execute(LARGE, (outbox.topic, records))


def large_ones(outbox: Outbox) -> list[int]:
    """The numbers of the large records in the topic, in order."""
    messages = (message for message in outbox.committed() if message.key() == b"h")
    return [int((message.value() or b"").lstrip(b"x")) for message in messages]


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    postgres = EmbeddedPostgres(server_folder / "full-postgres", fsync=False)
    with no_file_above(16 * MIB):  # as large as a file of Postgres' log, which so has room
        postgres.start()
    with postgres:
        yield postgres


def test_postgres_that_has_no_room_says_so_and_goes_on_when_it_has(
    own_postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    """Marking rewrites a record, and that needs room."""
    database = own_postgres.create_database("full")
    settings = MODES["at least once"]
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", **settings)
    innocents = Innocents(outbox, tmp_path / "outbox.yaml")
    with innocents.harvested() as process:
        outbox.query("UPDATE outbox_state SET paused = true RETURNING 1")
        write_large(outbox, 5_000)
        with pytest.raises(psycopg.Error, match="could not extend file"):
            write_large(outbox, 5_000)
        outbox.query("UPDATE outbox_state SET paused = false RETURNING 1")

        def is_told() -> bool:
            return any("could not extend" in event["error"] for event in process.events if event["event"] == "error")

        innocents.wait_until(is_told, "nobody says that there is no room", within=PATIENCE)
        strict_json(innocents.command("status", "--output", "json"))
        own_postgres.restart()
        innocents.wait_until(lambda: outbox.left() == 0, "it does not go on", within=PATIENCE)
        assert list(dict.fromkeys(large_ones(outbox))) == [*range(1, 5_001)]


@pytest.fixture
def own_kafka(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    kafka = EmbeddedKafka(server_folder / "full-kafka", classpath=kafka_classpath)
    with no_file_above(12 * MIB):  # an index is made 10 MiB large
        kafka.start()
    with kafka:
        yield kafka


def test_kafka_that_has_no_room_ends_and_goes_on_when_it_has(
    database: str, own_kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    outbox = make_outbox(database, bootstrap=own_kafka.bootstrap, topic=topic_prefix + "data", **MODES["single"])
    innocents = Innocents(outbox, tmp_path / "outbox.yaml")
    with innocents.harvested(kafka_producer={"compression.type": "none"}) as process:
        write_large(outbox, 8_000)
        innocents.write()

        def is_told() -> bool:
            return any("can't reach Kafka" in event["error"] for event in process.events if event["event"] == "error")

        innocents.wait_until(is_told, "nobody says that Kafka is gone", within=PATIENCE)
        strict_json(innocents.command("status", "--output", "json"))
        own_kafka.restart()
        innocents.come_out(within=PATIENCE)
        innocents.wait_until(lambda: outbox.left() == 0, "it does not go on", within=PATIENCE)
        assert large_ones(outbox) == [*range(1, 8_001)]
