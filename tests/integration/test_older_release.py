"""To a newer schema version and back, with the release before it: the package as it was before a migration.

That package comes out of git, so this needs the project's history.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.following import BOOTSTRAP, DATA_SOURCE, Followed
from support.harvesting import PATIENCE, Outbox, Process, make_topic, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.table import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[2]
TABLE = "airflow_outbox/postgres/table.py"
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from airflow_outbox.cli import main; main(prog_name='outbox')"
pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Release:
    """A release's package, by the folder that it is in, and the configuration of an outbox."""

    folder: Path
    file: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", MAIN, str(self.folder), *arguments, "-f", str(self.file)]

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=PATIENCE, cwd="/")
        assert done.returncode == status, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def of(self, file: Path, settings: dict[str, object]) -> Release:
        """The same release for another outbox."""
        file.write_text(yaml.safe_dump(settings))
        return Release(self.folder, file)


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture(scope="session")
def older_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest package of an older schema version."""
    commits = git("log", "--first-parent", "--format=%H", "--", TABLE).decode().split()
    commit = next(each for each in commits if version(git("show", f"{each}:{TABLE}").decode()) < SCHEMA_VERSION)
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "airflow_outbox"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def version(module: str) -> int:
    """The schema version that a release's module names."""
    found = re.search(r"^SCHEMA_VERSION = (\d+)$", module, re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    """An outbox that nobody has made yet, and its topic."""
    make_topic({"bootstrap.servers": kafka.bootstrap}, topic_prefix + "data")
    return Outbox(database, kafka.bootstrap, topic_prefix + "data")


@pytest.fixture
def older(outbox: Outbox, older_package: Path, tmp_path: Path) -> Release:
    settings = {"data_source": outbox.database, "kafka": {"bootstrap.servers": outbox.bootstrap}}
    return Release(older_package, tmp_path).of(tmp_path / "outbox.yaml", settings)


@pytest.fixture
def present(older: Release) -> Release:
    return Release(ROOT, older.file)


def insert(outbox: Outbox, begin: int, end: int, *, topic: str | None = None, keys: int = 10) -> None:
    """Stash as every release can: by a plain statement."""
    with psycopg.connect(outbox.database) as connection:
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
            " SELECT %s, 'k' || mod(n, %s), n FROM generate_series(%s::int, %s::int) AS n",
            [topic or outbox.topic, keys, begin, end - 1],
        )


@contextmanager
def harvesting(release: Release) -> Iterator[None]:
    member = Process(release.command("harvest"))
    try:
        yield
        member.popen.terminate()
        member.ends()
    finally:
        member.end()


def once(end: int) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, end, 10)) for key in range(10)}


def test_an_upgrade_with_a_backlog_and_parked_records(outbox: Outbox, older: Release, present: Release) -> None:
    later = f"{outbox.topic}-later"
    older.run("init")
    insert(outbox, 0, 20)
    insert(outbox, 0, 5, topic=later, keys=1)
    older.run("harvest", "--until", "drained")
    assert outbox.query("SELECT count(*), count(cause) FROM outbox_parked") == [(5, 1)]
    insert(outbox, 20, 40)
    insert(outbox, 5, 10, topic=later, keys=1)
    assert f"to {SCHEMA_VERSION}" in present.run("init")
    for refused in ("init", "harvest"):
        assert f"is at schema version {SCHEMA_VERSION}, but this release" in older.run(refused, status=1)
    present.run("harvest", "--until", "drained")
    assert outbox.by_key() == once(40)
    assert outbox.query("SELECT count(*), count(cause) FROM outbox_parked") == [(10, 1)]
    make_topic({"bootstrap.servers": outbox.bootstrap}, later)
    present.run("parked", "retry", "--all")
    with harvesting(present):
        wait_until(lambda: outbox.query("SELECT FROM outbox_parked") == [])
    assert Outbox(outbox.database, outbox.bootstrap, later).by_key() == {"k0": list(range(10))}
    assert outbox.by_key() == once(40)


def test_the_way_back_by_an_empty_outbox(
    outbox: Outbox, older: Release, present: Release, tmp_path: Path, database: str
) -> None:
    older.run("init")
    insert(outbox, 0, 10)
    older.run("harvest", "--until", "drained")
    present.run("init")
    insert(outbox, 10, 20)
    here = {DATA_SOURCE: database, BOOTSTRAP: outbox.bootstrap}
    Followed("how-to/uninstall.md", tmp_path, database, here).follow()
    older.run("init")
    insert(outbox, 20, 40)
    older.run("harvest", "--until", "drained")
    assert outbox.by_key() == once(40)


def test_the_way_back_by_the_dump(outbox: Outbox, older: Release, present: Release, postgres: EmbeddedPostgres) -> None:
    older.run("init")
    insert(outbox, 0, 10)
    older.run("harvest", "--until", "drained")
    insert(outbox, 10, 20)
    dump = older.file.with_name("before.dump")
    dumping = [postgres.programs / "pg_dump", "--format", "custom", "--file", dump, outbox.database]
    subprocess.run(dumping, check=True, timeout=PATIENCE)
    present.run("init")
    name = f"{conninfo_to_dict(outbox.database)['dbname']}_back"
    restored = make_conninfo(outbox.database, dbname=name)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            subprocess.run([postgres.programs / "pg_restore", "--dbname", restored, dump], check=True, timeout=PATIENCE)
            settings = {"data_source": restored, "kafka": {"bootstrap.servers": outbox.bootstrap}}
            back = older.of(dump.with_name("back.yaml"), settings)
            there = Outbox(restored, outbox.bootstrap, outbox.topic)
            with harvesting(back):
                wait_until(lambda: there.query("SELECT FROM outbox_state WHERE halted IS NOT NULL") != [])
            back.run("adopt", "--yes", "--reason", "went back")
            back.run("harvest", "--until", "drained")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    assert outbox.by_key() == once(20)
