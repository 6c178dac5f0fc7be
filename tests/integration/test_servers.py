"""The embedded servers: they start, keep their data through crashes, and never outlive whoever started them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.embedded.process import ServerError, ServerProcess
from airflow_outbox.demo.embedded.unprivileged import reachable_data

QUIET = {"log_level": 0}


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(PATIENCE) == 0
    assert failures == []


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "auto.offset.reset": "earliest", **QUIET}
    )
    consumer.subscribe([topic])
    try:
        messages = [message for message in consumer.consume(count, timeout=PATIENCE) if message.error() is None]
    finally:
        consumer.close()
    return [value for message in messages if (value := message.value()) is not None]


def create_topic(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})  # held, or it would end before the answer
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)


@pytest.fixture
def folder(server_folder: Path) -> Path:
    """A folder for servers of this test alone; the session's servers' folder is reachable for every user."""
    folder = server_folder / uuid.uuid4().hex[:8]
    folder.mkdir()
    return folder


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_postgres_answers_over_tcp_and_by_its_socket(postgres: EmbeddedPostgres, database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.info.host == "127.0.0.1"
        assert connection.execute("SELECT current_user, current_setting('max_connections')").fetchone() == (
            "postgres",
            "200",
        )
    with psycopg.connect(host=str(postgres.socket_folder), port=postgres.port, user="postgres") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_each_test_has_a_database_of_its_own(postgres: EmbeddedPostgres, database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        assert connection.info.dbname != "postgres"


def test_over_tcp_every_role_needs_a_password(postgres: EmbeddedPostgres, database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    assert isinstance(name, str)
    role = f"role_of_{name}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p@ss:word/'")
        try:
            for address in (
                postgres.dsn(name, user=role, password="p@ss:word/"),
                postgres.uri(name, user=role, password="p@ss:word/"),
            ):
                with psycopg.connect(address) as other:
                    assert other.execute("SELECT current_user").fetchone() == (role,)
            for user, password in ((role, None), (role, "wrong"), ("postgres", "wrong"), ("postgres", "")):
                with pytest.raises(psycopg.OperationalError, match="password"):
                    psycopg.connect(postgres.dsn(name, user=user, password=password))
        finally:
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.long
def test_postgres_keeps_committed_rows_through_a_crash(folder: Path) -> None:
    with EmbeddedPostgres(folder / "postgres", settings={"work_mem": "5MB"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        first, port = server.pid, server.port
        server.kill()
        assert not alive(first)
        server.restart()
        assert (server.port, server.pid != first) == (port, True)
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT n, current_setting('work_mem') FROM kept").fetchone() == (1, "5MB")
        assert "database system was not properly shut down" in server.log.read_text()
    assert not server._process


def test_postgres_runs_where_other_users_cannot_look(tmp_path: Path) -> None:
    closed = tmp_path / "closed to others" / ("deep" * 20)  # and too deep for a Unix socket
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    with EmbeddedPostgres(closed, fsync=False) as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    assert (closed / "data").is_symlink()
    with EmbeddedPostgres(closed, fsync=False) as again, psycopg.connect(again.dsn()) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (1,)
    (closed / "data").unlink()
    with EmbeddedPostgres(closed, fsync=False) as new, psycopg.connect(new.dsn()) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)


def test_data_that_nothing_leads_to_any_more_is_removed(tmp_path: Path) -> None:
    folders = [tmp_path / name / ("deep" * 20) for name in ("first", "second")]
    places = []
    for folder in folders:
        folder.mkdir(parents=True)
        places.append(reachable_data(folder, user=None))
        assert places[-1].is_dir()
        assert reachable_data(folder, user=None) == places[-1]
        shutil.rmtree(folder)
    assert [place.exists() for place in places] == [False, True]


@pytest.mark.long
def test_kafka_keeps_records_through_a_crash(kafka_classpath: str, folder: Path) -> None:
    with EmbeddedKafka(folder / "kafka é", classpath=kafka_classpath, properties={"num.partitions": "7"}) as server:
        create_topic(server.bootstrap, "kept")
        produce(server.bootstrap, "kept", b"before")
        first, bootstrap = server.pid, server.bootstrap
        server.kill()
        assert not alive(first)
        server.restart()
        assert (server.bootstrap, server.pid != first) == (bootstrap, True)
        produce(server.bootstrap, "kept", b"after")
        assert consume(server.bootstrap, "kept", 2) == [b"before", b"after"]
        assert "num.partitions = 7" in server.log.read_text()


def test_kafka_makes_no_topic_unasked(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    unknown = f"{topic_prefix}unknown"
    client = Producer({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for _ in range(2):  # asking for a topic is what makes it, where brokers do so
        error = client.list_topics(unknown, timeout=PATIENCE).topics[unknown].error
        assert error is not None
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        time.sleep(0.3)


def test_a_paused_broker_does_not_answer_until_it_is_resumed(kafka: EmbeddedKafka) -> None:
    client = AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    kafka.pause()
    try:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
    finally:
        kafka.resume()
    assert client.list_topics(timeout=PATIENCE).brokers


OWNER = """
import sys, threading
from pathlib import Path
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
folder, classpath = Path(sys.argv[1]), sys.argv[2]
servers = [EmbeddedPostgres(folder / "postgres", fsync=False), EmbeddedKafka(folder / "kafka", classpath=classpath)]
starts = [threading.Thread(target=server.start) for server in servers]
for start in starts: start.start()
for start in starts: start.join()
print(*(server.pid for server in servers), *(server._process._holder.pid for server in servers), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(kafka_classpath: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has started both servers, from threads that have ended since."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), kafka_classpath],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_servers_die_with_the_process_that_started_them(owner: subprocess.Popen[str]) -> None:
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        try:
            assert len(pids) == 4
            time.sleep(1.0)  # long enough to see a server that dies with the thread that started it
            assert [alive(pid) for pid in pids] == [True] * 4
            os.kill(pids[1], signal.SIGSTOP)  # a paused server, too
        finally:
            owner.kill()
    assert eventually(lambda: not any(alive(pid) for pid in pids), seconds=PATIENCE)


def test_servers_die_with_their_holders(owner: subprocess.Popen[str]) -> None:
    with owner:
        assert owner.stdout is not None
        *servers, postgres_holder, kafka_holder = (int(word) for word in owner.stdout.readline().split())
        try:
            os.kill(postgres_holder, signal.SIGKILL)
            os.kill(kafka_holder, signal.SIGKILL)
            assert eventually(lambda: not any(alive(pid) for pid in servers), seconds=PATIENCE)
        finally:
            owner.kill()


def test_a_server_that_does_not_come_up_shows_its_log(folder: Path) -> None:
    with pytest.raises(ServerError, match='unrecognized configuration parameter "no_such_setting"'):
        EmbeddedPostgres(folder / "postgres", settings={"no_such_setting": "1"}).start()


def test_kafka_that_does_not_come_up_shows_its_log(kafka_classpath: str, folder: Path) -> None:
    server = EmbeddedKafka(folder / "kafka", classpath=kafka_classpath)
    server.start()
    server.stop()
    (server.folder / "data" / "meta.properties").write_text("version=1\nnode.id=2\n")
    with pytest.raises(ServerError, match="ended while starting"):
        server.start()


def test_a_server_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    process = ServerProcess(["sleep", "60"], name="Sleep", log=tmp_path / "log", abandon_signal=signal.SIGKILL)
    with pytest.raises(ServerError, match="not ready within"):
        process.wait_until(lambda: False, timeout=0.2)
    assert not process.running
    assert not alive(process.pid)


def test_a_server_that_ignores_its_signal_is_killed(tmp_path: Path) -> None:
    process = ServerProcess(
        ["sh", "-c", "trap '' TERM; echo deaf; while true; do sleep 0.1; done"],
        name="Deaf",
        log=tmp_path / "log",
        abandon_signal=signal.SIGTERM,
    )
    assert eventually(lambda: "deaf" in (tmp_path / "log").read_text(), seconds=PATIENCE)
    with pytest.raises(ServerError, match="did not stop within"):
        process.stop(signal.SIGTERM, timeout=0.5)
    assert not alive(process.pid)


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no-such-command"):
        ServerProcess(["no-such-command"], name="Nothing", log=tmp_path / "log", abandon_signal=signal.SIGKILL)


def test_a_free_port_is_not_one_that_the_kernel_gives_to_clients() -> None:
    lowest_for_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= free_port() < lowest_for_clients for _ in range(20))


def test_a_free_port_is_kept_for_a_server_of_the_process_that_asked() -> None:
    """Another process tries a port in the same way before it takes it."""
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, port))
    for _ in range(2):  # as a server that is restarted
        with socket.create_server((LOOPBACK, port)) as server, socket.create_connection((LOOPBACK, port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
