"""What fault tests play on: servers that may be stopped, proxies before them, members, a load, and the judge at the
end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from faults.checker import Judgement, came_back, judge
from faults.load import IMPATIENT, Load, TopicReader
from faults.proxy import Proxy
from psycopg.conninfo import make_conninfo
from support.harvesting import CHILD, PATIENCE, Outbox, Process, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

MARK, PURGE, LOOK = b"airflow-outbox mark", b"airflow-outbox purge", b"airflow-outbox look"
"""What the connections of a leader begin with, among other bytes."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


# Who has marked or purged, in the order of the statements: the leader whose mark the records carry; without marks, the
# backend, for each leader has one of its own for that.
_RECORD_EFFECTS = """
CREATE TABLE effects (id bigserial PRIMARY KEY, leader text);
CREATE FUNCTION record_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.effects (leader)
    SELECT DISTINCT coalesce(leader_id::text, 'backend ' || pg_backend_pid()) FROM touched
    WHERE leader_id IS NOT NULL OR TG_OP = 'DELETE';
    RETURN NULL;
END $$;
CREATE TRIGGER marked AFTER UPDATE ON outbox
    REFERENCING NEW TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION record_effect();
CREATE TRIGGER purged AFTER DELETE ON outbox
    REFERENCING OLD TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION record_effect();
"""


class Servers:
    """A Postgres and a Kafka of the fault tests' own, each also behind proxies: Postgres behind one, Kafka behind one
    for producers of records and one for everything else.
    """

    def __init__(self, folder: Path, classpath: str) -> None:
        self.postgres = EmbeddedPostgres(folder / "faulty-postgres", fsync=False).start()
        direct, election, produce, controller = (free_port() for _ in range(4))
        self.to_postgres, self.to_kafka, self.to_produce = Proxy(self.postgres.port), Proxy(election), Proxy(produce)
        listeners = {"PLAINTEXT": (direct, direct), "ELECTION": (election, self.to_kafka.port)}
        listeners["PRODUCE"] = (produce, self.to_produce.port)
        self.kafka = EmbeddedKafka(
            folder / "faulty-kafka",
            classpath=classpath,
            port=direct,
            properties={
                "listeners": ",".join(
                    [f"{name}://{LOOPBACK}:{port}" for name, (port, _) in listeners.items()]
                    + [f"CONTROLLER://{LOOPBACK}:{controller}"]
                ),
                "advertised.listeners": ",".join(
                    f"{name}://{LOOPBACK}:{port}" for name, (_, port) in listeners.items()
                ),
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in [*listeners, "CONTROLLER"]),
                "inter.broker.listener.name": "PLAINTEXT",
                "group.min.session.timeout.ms": "1000",
                "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            },
        ).start()

    def restore(self) -> None:
        """Up and in order, as the next test expects them."""
        for proxy in self.proxies:
            proxy.heal()
        self.kafka.start()
        self.postgres.start()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        self.kafka.kill()
        self.postgres.stop("immediate")

    @property
    def proxies(self) -> tuple[Proxy, ...]:
        return self.to_postgres, self.to_kafka, self.to_produce


@dataclass(slots=True)
class Scene:
    """One test's outbox, members and load."""

    servers: Servers
    outbox: Outbox
    records: int
    limits: dict[str, Any] = field(default_factory=dict)  # of members, unless a test gives others
    pot: int = 4_000  # records that wait or are in flight before the fault
    members: list[Process] = field(default_factory=list)
    _struck: list[int] = field(default_factory=list)  # what was in flight whenever a proxy struck
    _reader: TopicReader | None = None
    _load: Load | None = None

    def __post_init__(self) -> None:
        with psycopg.connect(self.outbox.database) as connection:
            connection.execute(_RECORD_EFFECTS)
        for proxy in self.servers.proxies:
            proxy.on_hit = lambda: self._struck.append(self.marked())

    def member(
        self, *, proxied: bool = False, limits: dict[str, Any] | None = None, command: Sequence[str] = CHILD
    ) -> Process:
        """Start a harvester that reaches the servers directly, or through the proxies; `command` is another child."""
        config = {**self.outbox.settings, "limits": limits or self.limits}
        if proxied:
            servers = self.servers
            config |= {
                "data_source": make_conninfo(
                    self.outbox.database, port=servers.to_postgres.port, sslmode="disable", gssencmode="disable"
                ),
                "kafka": {"bootstrap.servers": f"{LOOPBACK}:{servers.to_kafka.port}"},
                "kafka_producer": {"bootstrap.servers": f"{LOOPBACK}:{servers.to_produce.port}"},
            }
        member = Process(list(command), first_line={"config": config, "until": "forever"})
        self.members.append(member)
        return member

    def leader(
        self, *, proxied: bool = False, limits: dict[str, Any] | None = None, command: Sequence[str] = CHILD
    ) -> Process:
        """Start a harvester, and wait until it leads."""
        member = self.member(proxied=proxied, limits=limits, command=command)
        member.wait_for("view")
        return member

    def standby(self, *, command: Sequence[str] = CHILD) -> Process:
        """Start a harvester, and wait until it has joined the group."""
        member = self.member(command=command)
        member.wait_for("progress", standing="standby")
        self.wait_until(lambda: self.group_members() == len(self.running))
        return member

    @property
    def running(self) -> list[Process]:
        """The members that have not ended."""
        return [member for member in self.members if member.popen.poll() is None]

    def group_members(self, group: str | None = None) -> int:
        """How many the coordinator counts in the election's group, once it has an assignment for them all."""
        client = AdminClient({"bootstrap.servers": self.servers.kafka.bootstrap, "log_level": 0})
        group = group or f"airflow-outbox.{self.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}"
        described = client.describe_consumer_groups([group])[group].result(10)
        return len(described.members) if described.state.name == "STABLE" else 0

    @property
    def reader(self) -> TopicReader:
        if self._reader is None:
            self._reader = TopicReader(self.servers.kafka.bootstrap, self.outbox.topic)
        return self._reader

    @property
    def load(self) -> Load:
        assert self._load is not None, "there is no load yet"
        return self._load

    def midway(self, records: int | None = None) -> None:
        """Begin the load, and wait until the harvest is in the middle of it: until so many more records have come."""
        if self._load is None:
            self._load = Load(
                self.outbox.database,
                topic=self.outbox.topic,
                records=self.records,
                reader=self.reader,
                pot=self.pot,
            )
        awaited = len(self.reader) + (records or self.records // 8)
        self.wait_until(lambda: len(self.reader) > awaited and self.marked() > 0)

    @property
    def is_exactly_once(self) -> bool:
        return self.outbox.settings["delivery"] == EXACTLY_ONCE

    def marked(self) -> int:
        """Records that are in flight: marked by a leader and not yet purged. Exactly once marks none: those that
        wait or are in flight, of which the load keeps some all the time.
        """
        marked = "" if self.is_exactly_once else " WHERE leader_id IS NOT NULL"
        return int(self.outbox.query(f"SELECT count(*) FROM outbox{marked}")[0][0])

    def views(self) -> int:
        """How often the fence row has been given another view."""
        return sum(event["event"] == "view" for member in self.members for event in member.events)

    def published_by(self, member: Process) -> int:
        """Records that a member has published and purged, as it says in its next report, or said in its last."""
        since = len(member.events)
        if member.popen.poll() is None:
            self.next_event(member, "progress", since=since)
        return int(next(event["published"] for event in reversed(member.events) if "published" in event))

    def standing(self, member: Process) -> str:
        """What a member says that it is, from its next report on."""
        since = len(member.events)
        return str(self.next_event(member, "progress", since=since)["standing"])

    def stop_in_flight(self, member: Process) -> None:
        """Stop a member at a moment at which records are in flight, as they are nearly always."""

        def stopped() -> bool:
            os.kill(member.popen.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(member))
            if self.marked() > 0:
                return True
            go_on(member)
            return False

        self.wait_until(stopped)

    def was_in_flight(self) -> None:
        """To be called when a fault has hit that ends the harvest: that it did so while records were in flight."""
        assert self.marked() > 0, "the fault hit when nothing was in flight"

    def hits(self, hit: threading.Event) -> None:
        """Wait until a rule of a proxy has struck, which has to be while records are in flight."""
        self.wait_until(hit.is_set)
        assert self._struck, "the proxy does not say what it struck"
        assert self._struck.pop() > 0, "the fault hit when nothing was in flight"

    def next_event(
        self, member: Process, *events: str, since: int, within: float = PATIENCE, **fields: Any
    ) -> dict[str, Any]:
        """The first of such events that a member has announced since it had announced `since` events."""
        found: list[dict[str, Any]] = []

        def happened() -> bool:
            found[:] = [
                event for event in member.events[since:] if event["event"] in events and fields.items() <= event.items()
            ]
            return bool(found)

        self.wait_until(happened, within=within)
        return found[0]

    def wait_until(self, condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
        try:
            wait_until(condition, within=within)
        except AssertionError:
            raise AssertionError(f"not within {within:g} s.\n{self.story()}") from None

    def story(self) -> str:
        """What the members said, for who reads a failure."""
        lines = []
        for place, member in enumerate(self.members):
            for event in member.events:
                lines.append(f"{event['time']} member {place}: {event}")
        return "\n".join(sorted(lines)[-60:])

    def ends_well(self, *, within: float = 60) -> Judgement:
        """Let the load end and everything be harvested, end the members, and judge."""
        self.load.finish(within)
        self.wait_until(lambda: self.outbox.left() == 0, within=within)
        running = self.running
        self.wait_until(lambda: all(member.events for member in running))  # who has only just begun knows no signals
        for member in running:
            member.popen.terminate()
        for member in running:
            member.ends()
            assert member.popen.returncode == 0, f"ended with {member.popen.returncode}\n{self.story()}"
        for member in self.members:
            assert not processes_of(member), "a member has left processes behind"
        for proxy in self.servers.proxies:
            proxy.heal()
        self.wait_until(lambda: self.backends() == 0)
        self.wait_until(self.reader.has_read_all)
        verdict = judge(self.load.stashed, self.reader.sightings)
        assert not verdict.complaints, f"{verdict}\n{self.story()}"
        assert not (self.is_exactly_once and verdict.duplicates), f"{verdict}\n{self.story()}"
        effects = [leader for (leader,) in self.outbox.query("SELECT leader FROM effects ORDER BY id")]
        assert not came_back(effects), f"a leader has had effects after its successor\n{self.story()}"
        return verdict

    def backends(self) -> int:
        """Sessions that harvesters have left in Postgres."""
        return int(
            self.outbox.query(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE application_name LIKE 'airflow-outbox%' AND datname = current_database()"
            )[0][0]
        )

    def close(self) -> None:
        for member in self.members:
            if member.popen.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.popen.pid, signal.SIGCONT)
            member.end()
        if self._load is not None:
            self._load.close()
        if self._reader is not None:
            self._reader.close()


def moment_of(event: dict[str, Any]) -> float:
    """When a member wrote an event, on the system's clock."""
    return datetime.fromisoformat(event["time"]).timestamp()


def go_on(member: Process) -> int:
    """Let a stopped member go on; how many events it had announced."""
    since = len(member.events)
    os.kill(member.popen.pid, signal.SIGCONT)
    return since


def is_stopped(member: Process) -> bool:
    """Whether a member's process is stopped (SIGSTOP)."""
    return Path(f"/proc/{member.popen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def processes_of(member: Process) -> list[int]:
    """Processes of a member's session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == member.popen.pid:
                    found.append(int(entry.name))
    return found


def wait_for_the_broker(kafka: EmbeddedKafka) -> float:
    """When a broker that is starting answers a metadata request, on the system's clock."""
    while True:
        client = AdminClient({"bootstrap.servers": kafka.bootstrap, **IMPATIENT})
        with contextlib.suppress(KafkaException):
            if client.list_topics(timeout=0.3).brokers:
                return time.time()
