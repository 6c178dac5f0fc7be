"""Fixtures that test files of several folders share. A file whose outbox or harvester is special has one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from support.archiving import Archived, make_archived
from support.harvesting import CHILD, COMMAND, Outbox, Process, make_outbox
from support.leading import Leader
from support.tracing import Traces

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.connection import KEEP_ALIVE


@pytest.fixture(scope="session", autouse=True)
def patient_connections() -> Iterator[None]:
    """In this process, connecting to a Postgres that a busy machine holds up takes the time that it needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KEEP_ALIVE, "connect_timeout", 20)
        yield


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    """The spans that this process makes during the test, kept in memory."""
    return Traces.begin(monkeypatch)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to an empty database, each of whose statements commits."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    """An outbox on the session's servers, with default settings."""
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")


@pytest.fixture
def harvester(outbox: Outbox) -> Iterator[Process]:
    """A harvester of `outbox` that has been started."""
    process = Process(CHILD, first_line={"config": outbox.settings})
    yield process
    process.end()


@pytest.fixture
def start(outbox: Outbox, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start a harvester of `outbox`: as the command, or as the child."""
    started: list[Process] = []

    def start(*arguments: str, child: bool = False, until: str = "forever", **settings: Any) -> Process:
        config = {**outbox.settings, **settings}
        if child:
            process = Process(CHILD, first_line={"config": config, "until": until})
        else:
            file = tmp_path / "outbox.yaml"
            file.write_text(yaml.safe_dump(config))
            process = Process([*COMMAND, "harvest", "-f", str(file), "--until", until, *arguments])
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def leader(database: str) -> Iterator[Leader]:
    """A leader by hand, of an outbox in an empty database."""
    with closing(Leader(database)) as leader:
        yield leader


@pytest.fixture
def archived(database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Archived:
    """An outbox with an archive, and its configuration in a file."""
    return make_archived(database, bootstrap=kafka.bootstrap, topic=f"{topic_prefix}orders", folder=tmp_path)
