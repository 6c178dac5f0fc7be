"""Servers that these tests may stop, shared by them; each test has a scene of its own on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.late import FrameServers, LateScene
from faults.scene import AT_LEAST_ONCE, EXACTLY_ONCE, Scene, Servers
from support.harvesting import make_outbox

RECORDS = {"short": 6_000, "long": 20_000}


@pytest.fixture(scope="session")
def servers(server_folder: Path, kafka_classpath: str) -> Iterator[Servers]:
    servers = Servers(server_folder, kafka_classpath)
    yield servers
    servers.close()


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the faults are to last as long as they may, and the load to be as large."""
    return bool(request.config.getoption("--faults") == "long")


@pytest.fixture(params=[EXACTLY_ONCE, AT_LEAST_ONCE])
def delivery(request: pytest.FixtureRequest) -> str:
    """What consumers may count on; a test that is about one mode only names it by a parametrisation of its own."""
    return str(request.param)


@pytest.fixture
def scene(servers: Servers, topic_prefix: str, is_long: bool, delivery: str) -> Iterator[Scene]:
    """An outbox on the servers. A test that asks for 20,000 records in any case says so itself."""
    name = f"fault_{uuid.uuid4().hex[:12]}"
    database = servers.postgres.create_database(name)
    outbox = make_outbox(database, bootstrap=servers.kafka.bootstrap, topic=topic_prefix + "data", delivery=delivery)
    scene = Scene(servers, outbox, RECORDS["long" if is_long else "short"])
    yield scene
    servers.restore()
    scene.close()
    servers.postgres.drop_database(name)


@pytest.fixture(scope="session")
def frame_servers(server_folder: Path, kafka_classpath: str) -> Iterator[FrameServers]:
    """Servers whose single Kafka requests these tests may mistreat."""
    servers = FrameServers(server_folder, kafka_classpath)
    yield servers
    servers.close()


@pytest.fixture
def late_scene(frame_servers: FrameServers, topic_prefix: str, request: pytest.FixtureRequest) -> Iterator[LateScene]:
    """An outbox whose producers reach Kafka through a frame proxy; the parameter, if any, is whether it is atomic."""
    name = f"late_{uuid.uuid4().hex[:12]}"
    database = frame_servers.postgres.create_database(name)
    settings = {"delivery": EXACTLY_ONCE, "atomic": getattr(request, "param", False)}
    outbox = make_outbox(database, bootstrap=frame_servers.kafka.bootstrap, topic=topic_prefix + "data", **settings)
    scene = LateScene(frame_servers, outbox, records=4_000, limits={"batch_records": 200}, pot=1_500)
    yield scene
    frame_servers.restore()
    scene.close()
    frame_servers.postgres.drop_database(name)
