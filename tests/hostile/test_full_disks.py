"""No room on a disk: whatever is refused then is said, nothing is lost or doubled, and it goes on when there is room.

A server may not make a file larger than a limit here. It meets that as it meets the end of a disk, and a test needs no
rights for it. Postgres' log is also tried on a small volume of its own, which takes root to mount.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
from hostile.conftest import MODES
from hostile.innocents import Innocents, strict_json
from support.harvesting import Outbox, make_outbox

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
def own_postgres(server_folder: Path, topic_prefix: str) -> Iterator[EmbeddedPostgres]:
    postgres = EmbeddedPostgres(server_folder / f"{topic_prefix}full-postgres", fsync=False)
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
        innocents.wait_until(lambda: bool(process.newest_progress.get("paused")), "nobody pauses")
        write_large(outbox, 5_000)
        with pytest.raises(psycopg.Error, match="could not extend file"):
            write_large(outbox, 5_000)
        outbox.query("UPDATE outbox_state SET paused = false RETURNING 1")

        def is_told() -> bool:
            return any("could not extend" in event["error"] for event in process.events if event["event"] == "error")

        innocents.wait_until(is_told, "nobody says that there is no room")
        strict_json(innocents.command("status", "--output", "json"))
        own_postgres.restart()
        innocents.wait_until(lambda: outbox.left() == 0, "it does not go on")
        assert list(dict.fromkeys(large_ones(outbox))) == [*range(1, 5_001)]


@contextmanager
def log_on_a_volume(postgres: EmbeddedPostgres) -> Iterator[Callable[[], None]]:
    """Postgres is started again with its log on a volume that has room for two files of it, or for more once what is
    returned was called.
    """
    log = postgres.socket_folder / "pg_wal"
    postgres.stop()
    owner, files = log.stat(), log.with_name("pg_wal.before")
    log.rename(files)
    log.mkdir(mode=0o700)
    _mount("-t", "tmpfs", "-o", f"size=40m,mode=700,uid={owner.st_uid},gid={owner.st_gid}", "tmpfs", log)
    try:
        subprocess.run(["cp", "-a", f"{files}/.", log], check=True)
        postgres.start()
        yield lambda: _mount("-o", "remount,size=400m", log)
    finally:
        postgres.stop("immediate")
        subprocess.run(["umount", log], check=True)


def _mount(*arguments: str | Path) -> None:
    mounted = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    assert mounted.returncode == 0, f"this test has to be root, and may mount a volume: {mounted.stderr}"


@contextmanager
def log_of_limited_files(postgres: EmbeddedPostgres) -> Iterator[Callable[[], None]]:
    """Postgres is started again, and may write no other file of its log than the one that is there already."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_switch_wal()")
    with no_file_above(12 * MIB):
        postgres.restart()
    yield lambda: None  # the limit is that of the server's process


@pytest.mark.parametrize(
    ("full", "cause"),
    [(log_on_a_volume, "No space left on device"), (log_of_limited_files, "File too large")],
    ids=["volume", "limit"],
)
def test_postgres_whose_log_has_no_room_ends_and_goes_on_when_it_has(
    full: Callable[[EmbeddedPostgres], AbstractContextManager[Callable[[], None]]],
    cause: str,
    server_folder: Path,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    """Postgres ends all its sessions then."""
    postgres = EmbeddedPostgres(server_folder / f"{topic_prefix}full-log", fsync=False)
    with postgres, full(postgres) as make_room:
        outbox = make_outbox(postgres.create_database("full"), bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
        innocents = Innocents(outbox, tmp_path / "outbox.yaml")
        with innocents.harvested() as process:
            innocents.write()
            with pytest.raises(psycopg.Error):  # the server's last words, if they come before the connection is gone
                _fill_the_log(outbox.database)

            def has_panicked() -> bool:
                return any("PANIC" in line and cause in line for line in postgres.log.read_text().splitlines())

            innocents.wait_until(has_panicked, f"Postgres does not end because of: {cause}")

            def is_told() -> bool:
                return any("Postgres" in event["error"] for event in process.events if event["event"] == "error")

            innocents.wait_until(is_told, "nobody says that Postgres is gone")
            make_room()
            postgres.restart("immediate")
            innocents.write()
            innocents.come_out()
            innocents.stand(named=None)


def _fill_the_log(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(40):
            connection.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")


@pytest.fixture
def own_kafka(server_folder: Path, kafka_classpath: str, topic_prefix: str) -> Iterator[EmbeddedKafka]:
    kafka = EmbeddedKafka(server_folder / f"{topic_prefix}full-kafka", classpath=kafka_classpath)
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

        innocents.wait_until(is_told, "nobody says that Kafka is gone")
        strict_json(innocents.command("status", "--output", "json"))
        own_kafka.restart()
        innocents.come_out()
        innocents.wait_until(lambda: outbox.left() == 0, "it does not go on")
        assert large_ones(outbox) == [*range(1, 8_001)]
