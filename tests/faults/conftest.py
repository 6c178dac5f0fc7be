"""Servers that these tests may stop, shared by them; each test has a scene of its own on them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults.late import FrameServers, LateScene
from faults.regions import BOTH, Region, Regions, regional
from faults.scene import AT_LEAST_ONCE, EXACTLY_ONCE, Scene, Servers
from faults.two_clusters import TwoClusters, two_clusters
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

RECORDS = {"short": 6_000, "long": 20_000}


@pytest.fixture(scope="package")
def servers(server_folder: Path, kafka_classpath: str) -> Iterator[Servers]:
    """They end when the tests of this folder do: brokers that idle take time from others."""
    servers = Servers(server_folder / f"faulty-{uuid.uuid4().hex[:8]}", kafka_classpath)
    yield servers
    servers.close()


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether the faults are to last as long as they may, and the load to be as large."""
    return bool(request.config.getoption("--faults") == "long")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of what happens at random: that of `--seed`, or one that is drawn. A failure shows it."""
    asked = request.config.getoption("--seed")
    drawn = random.randrange(10**9) if asked is None else int(asked)
    request.node.add_report_section("setup", "seed", f"--seed {drawn}")
    return drawn


@pytest.fixture(params=[EXACTLY_ONCE, AT_LEAST_ONCE])
def delivery(request: pytest.FixtureRequest) -> str:
    """The guarantee for consumers; a test that is about one mode only names it by a parametrisation of its own."""
    return str(request.param)


@pytest.fixture(scope="module")
def backup(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """A second cluster."""
    properties = {"group.min.session.timeout.ms": "1000"}  # it may become the primary
    with EmbeddedKafka(server_folder / "backup", classpath=kafka_classpath, properties=properties) as server:
        yield server
        server.kill()


@pytest.fixture
def clusters(database: str, kafka: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str) -> Iterator[TwoClusters]:
    with two_clusters(database, topic_prefix + "data", kafka, backup) as scene:
        yield scene
    backup.start()  # if a test that failed has left it dead


@pytest.fixture
def swapped(database: str, kafka: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str) -> Iterator[TwoClusters]:
    """The second cluster, which a test may kill, is the primary."""
    with two_clusters(database, topic_prefix + "data", backup, kafka) as scene:
        yield scene
    backup.restart()


@contextmanager
def scene_on(servers: Servers, topic: str, *, is_long: bool, **settings: Any) -> Iterator[Scene]:
    """An outbox on the servers, with these settings, too."""
    name = f"fault_{uuid.uuid4().hex[:12]}"
    database = servers.postgres.create_database(name)
    outbox = make_outbox(database, bootstrap=servers.kafka.bootstrap, topic=topic, **settings)
    scene = Scene(servers, outbox, RECORDS["long" if is_long else "short"])
    yield scene
    servers.restore()
    scene.close()
    servers.postgres.drop_database(name)


@pytest.fixture
def scene(servers: Servers, topic_prefix: str, is_long: bool, delivery: str) -> Iterator[Scene]:
    """An outbox on the servers. A test that asks for 20,000 records in any case says so itself."""
    with scene_on(servers, topic_prefix + "data", is_long=is_long, delivery=delivery) as scene:
        yield scene


@pytest.fixture
def spanning_scene(
    servers: Servers, backup: EmbeddedKafka, topic_prefix: str, is_long: bool, delivery: str
) -> Iterator[Scene]:
    """An outbox that is published to two clusters, of which the second is `backup`."""
    clusters = {
        name: {"bootstrap.servers": kafka.bootstrap} for name, kafka in (("primary", servers.kafka), ("backup", backup))
    }
    with scene_on(servers, topic_prefix + "data", is_long=is_long, delivery=delivery, clusters=clusters) as scene:
        yield scene
    backup.start()


@pytest.fixture(scope="module")
def regions_of_two(server_folder: Path, kafka_classpath: str) -> Iterator[dict[str, Region]]:
    """Two regions, of which a test may lose one."""
    folder = server_folder / f"regions-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    folder.chmod(0o755)
    found = {name: Region(folder / name, kafka_classpath) for name in BOTH}
    yield found
    for region in found.values():
        region.close()


@pytest.fixture
def regional_scene(database: str, regions_of_two: dict[str, Region], topic_prefix: str) -> Iterator[Regions]:
    with regional(database, regions_of_two, topic_prefix + "data") as scene:
        yield scene


@pytest.fixture(scope="package")
def frame_servers(server_folder: Path, kafka_classpath: str) -> Iterator[FrameServers]:
    """Servers whose single Kafka requests these tests may mistreat."""
    servers = FrameServers(server_folder / f"framed-{uuid.uuid4().hex[:8]}", kafka_classpath)
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
