"""The scene of fault tests: servers that may be stopped, proxies before them, members, a load, and the judge at the
end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from faults.checker import Judgement, came_back, judge
from faults.listeners import listening
from faults.load import Load, TopicReader
from faults.processes import go_on, processes_of, stop
from faults.proxy import Kind, Proxy, any_request
from psycopg.conninfo import make_conninfo
from support.harvesting import CHILD, PATIENCE, Outbox, PatienceExhaustedError, Process, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

MARK, PURGE, LOOK = b"airflow-outbox mark", b"airflow-outbox purge", b"airflow-outbox look"
"""The beginning of a leader's connections, among other bytes."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


# The leaders that marked or purged, in the order of the statements: each is known by its mark on the records, or,
# without marks, by its backend, since each leader has one of its own for that.
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
        self.postgres = EmbeddedPostgres(folder / "postgres", fsync=False).start()
        direct, election, produce = (free_port() for _ in range(3))
        self.to_postgres, self.to_kafka, self.to_produce = Proxy(self.postgres.port), Proxy(election), Proxy(produce)
        listeners = {"PLAINTEXT": (direct, direct), "ELECTION": (election, self.to_kafka.port)}
        listeners["PRODUCE"] = (produce, self.to_produce.port)
        self.kafka = EmbeddedKafka(
            folder / "kafka",
            classpath=classpath,
            port=direct,
            properties=listening(listeners),
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
    rate: float | None = None  # or so many are written a second
    is_sharded: bool = False  # leaders of several shards take turns: only the judge tells whether that is right
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
        """Start a harvester, and wait until it has joined the group.

        On a busy machine it may soon lead in the place of the other one: `leading` tells.
        """
        member = self.member(command=command)
        member.wait_for("progress")
        self.wait_until(lambda: self.group_members() == len(self.running))
        return member

    def leading(self) -> Process | None:
        """The member whose view the fence row names; None when it has ended, or nobody leads."""
        [(member,)] = self.outbox.query("SELECT member FROM outbox_shard")
        if member is None:
            return None
        return {process.popen.pid: process for process in self.running}.get(int(member.rpartition(":")[2]))

    def await_leader(self) -> Process:
        """Wait until a member leads that runs."""
        found: list[Process | None] = []

        def is_led() -> bool:
            found[:] = [self.leading()]
            return found[0] is not None

        self.wait_until(is_led)
        [leader] = found
        assert leader is not None
        return leader

    @property
    def running(self) -> list[Process]:
        """The members that have not ended."""
        return [member for member in self.members if member.popen.poll() is None]

    def group_members(self, group: str | None = None) -> int | None:
        """How many the coordinator counts in the election's group; None while it has no assignment for them all, or
        does not tell.
        """
        client = AdminClient({"bootstrap.servers": self.servers.kafka.bootstrap, "log_level": 0})
        group = group or f"airflow-outbox.{self.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}"
        try:
            described = client.describe_consumer_groups([group])[group].result(PATIENCE)
        except KafkaException:
            return None
        return len(described.members) if described.state.name in ("STABLE", "EMPTY", "DEAD") else None

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
                rate=self.rate,
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
        """A member's standing by its own word, from its next report on."""
        since = len(member.events)
        return str(self.next_event(member, "progress", since=since)["standing"])

    def stop_in_flight(self, member: Process) -> None:
        """Stop a member at a moment at which records are in flight, as they are nearly always."""

        def stopped() -> bool:
            stop(member)
            if self.marked() > 0:
                return True
            go_on(member)
            return False

        self.wait_until(stopped)

    def stop_the_leader(self) -> Process:
        """Stop the member that leads at a moment at which records are in flight, and return it."""
        found: list[Process] = []

        def stopped() -> bool:
            leader = self.leading()
            if leader is None:
                return False
            stop(leader)
            if self.leading() is leader and self.marked() > 0:
                found.append(leader)
                return True
            go_on(leader)
            return False

        self.wait_until(stopped)
        return found[0]

    def is_amid(self) -> None:
        """To be called when a fault has hit that ends the harvest: wait until something is in flight, which the load
        sees to, unless the fault hit amid some.
        """
        self.wait_until(lambda: self.marked() > 0)

    def hits(self, hit: threading.Event) -> None:
        """Wait until a rule of a proxy has struck, which has to be while records are in flight."""
        self.wait_until(hit.is_set)
        assert self._struck, "the proxy does not say what it struck"
        assert max(self._struck) > 0, "the fault hit when nothing was in flight"
        self._struck.clear()

    def amid(self, kind: Kind = any_request) -> Kind:
        """Requests of a kind that are made while records are in flight: between two batches there may be none."""

        def is_amid(request: bytes) -> bool:
            if not kind(request):
                return False
            self._struck.append(self.marked())
            return self._struck[-1] > 0

        return is_amid

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
        except PatienceExhaustedError:
            raise PatienceExhaustedError(f"not within {within:g} s.\n{self.story()}") from None

    def story(self) -> str:
        """The members' words, for the reader of a failure."""
        lines = []
        for place, member in enumerate(self.members):
            for event in member.events:
                lines.append(f"{event['time']} member {place}: {event}")
        return "\n".join(sorted(lines)[-60:])

    def ends_well(self, *, within: float = 2 * PATIENCE) -> Judgement:
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
        assert self.is_sharded or not came_back(effects), (
            f"a leader has had effects after its successor\n{self.story()}"
        )
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
