"""The harvesting process as a user meets it: the command, the child, their ends, and what they say; on the real
servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import CALM, CHILD, COMMAND, PATIENCE, REGULAR_EVENTS, Outbox, Process, wait_until
from support.older_postgres import OLDEST

from airflow_outbox.cli import main
from airflow_outbox.harvest.supervised_child import ENVIRONMENT

Start = Callable[..., Process]


def in_order(count: int, keys: int = 10) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, count, keys)) for key in range(min(keys, count))}


@pytest.mark.parametrize(
    ("database_server", "child"),
    [("18", False), ("18", True), (OLDEST, False)],
    ids=["command", "child", "oldest_postgres"],
    indirect=["database_server"],
)
def test_everything_is_published_once_in_order_and_purged(outbox: Outbox, start: Start, child: bool) -> None:
    outbox.stash(3000)
    process = start(until="drained", child=child, limits=CALM)
    process.ends()
    assert process.popen.returncode == 0
    assert outbox.left() == 0
    assert outbox.by_key() == in_order(3000)
    ended = process.wait_for("ended", reason="drained")
    assert ended["published"] == 3000
    progress = [event for event in process.events if event["event"] == "progress"]
    assert sum(sum(event["topics"].values()) for event in progress) == 3000
    told = [event["event"] for event in process.events if event["event"] not in REGULAR_EVENTS]
    if not process.was_unseated:
        assert told == ["started", "elected", "view", "took_over", "ended"]


def test_one_hot_key_stays_in_order(outbox: Outbox, start: Start) -> None:
    outbox.stash(2000, keys=1)
    start(until="drained").ends()
    assert outbox.by_key() == in_order(2000, keys=1)


def test_it_goes_on_with_what_is_stashed_later(outbox: Outbox, start: Start) -> None:
    process = start()
    process.wait_for("view")
    for turn in range(3):
        outbox.stash(100, start=100 * turn)
        wait_until(lambda: outbox.left() == 0)
    assert outbox.by_key() == in_order(300)
    view = process.wait_for("progress", standing="leading")["view"]
    assert outbox.query("SELECT view::text, published FROM outbox_shard") == [(view, 300)] or wait_for_account(
        outbox, 300
    )


def wait_for_account(outbox: Outbox, published: int) -> bool:
    wait_until(lambda: outbox.query("SELECT published FROM outbox_shard") == [(published,)])
    return True


def test_sigterm_ends_the_command_and_hands_over(outbox: Outbox, start: Start) -> None:
    first = start()
    first.wait_for("view")
    second = start()
    wait_until(
        lambda: {process.newest_progress.get("standing") for process in (first, second)} == {"leading", "standby"},
    )
    leader, other = (first, second) if first.newest_progress["standing"] == "leading" else (second, first)
    outbox.stash(5000)
    seen = len(other.events)
    leader.popen.terminate()
    leader.ends()
    assert leader.popen.returncode == 0
    assert leader.wait_for("ended", reason="stopped")
    wait_until(lambda: any(event["event"] == "view" for event in other.events[seen:]))
    wait_until(lambda: outbox.left() == 0)
    assert outbox.by_key() == in_order(5000)


SHARED_BY_TOOLS = {
    "acks": "1",
    "enable.idempotence": True,
    "retries": 5,
    "transactional.id": "theirs",
    "message.timeout.ms": 30_000,
    "delivery.report.only.error": True,
    "queuing.strategy": "lifo",
    "max.in.flight": 100,
    "enabled_events": 255,
    "group.id": "theirs",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": True,
    "session.timeout.ms": 60_000,
    "isolation.level": "read_uncommitted",
    "partition.assignment.strategy": "roundrobin",
    "fetch.min.bytes": 10,
}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_settings_that_tools_share_keep_no_client_from_its_work(outbox: Outbox, tmp_path: Path, delivery: str) -> None:
    outbox.stash(100)
    file, log = tmp_path / "outbox.yaml", tmp_path / "log"
    settings = {**outbox.settings, "kafka": {**outbox.settings["kafka"], **SHARED_BY_TOOLS}, "delivery": delivery}
    file.write_text(yaml.safe_dump(settings))
    process = Process([*COMMAND, "harvest", "-f", str(file), "--until", "drained"], log=log)
    try:
        process.ends()
    finally:
        process.end()
    assert (process.popen.returncode, outbox.left()) == (0, 0)
    assert outbox.by_key() == in_order(100)
    said = log.read_text()
    assert said.count("have no effect") == said.count("counts as 5") == 1
    checked = subprocess.run([*COMMAND, "check", "-f", str(file)], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout.count("note: ")) == (0, 2)


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes nothing more until somebody reads it: its two ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"-" * select.PIPE_BUF):
            pass
    os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def harvest_that_ends(
    outbox: Outbox, file: Path, *, stdout: int, stderr: int, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """The command harvests, with output to there; once the block is done, it ends when it is asked to."""
    file.write_text(yaml.safe_dump({**outbox.settings, "log_level": "debug", **settings}))
    process = subprocess.Popen([*COMMAND, "harvest", "-f", str(file)], stdout=stdout, stderr=stderr)
    try:
        outbox.stash(100)
        wait_until(lambda: outbox.left() == 0)
        yield process
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_output_that_nobody_reads_holds_nothing_up(outbox: Outbox, tmp_path: Path, processes: int) -> None:
    with (
        full_pipe() as (events, stdout),
        full_pipe() as (_, stderr),
        harvest_that_ends(outbox, tmp_path / "f", stdout=stdout, stderr=stderr, processes=processes),
        open(os.dup(events)) as reader,
    ):
        first = json.loads(reader.readline().lstrip("-"))
        assert first["event"] in ("started", "elected")


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_disk_that_is_full_of_output_holds_nothing_up(outbox: Outbox, tmp_path: Path, processes: int) -> None:
    with (
        open("/dev/full", "w") as full,
        harvest_that_ends(outbox, tmp_path / "f", stdout=full.fileno(), stderr=full.fileno(), processes=processes),
    ):
        pass


def test_a_stopped_leaders_lock_on_the_fence_is_ended(outbox: Outbox, start: Start) -> None:
    with psycopg.connect(outbox.database) as stopped, psycopg.connect(outbox.database, autocommit=True) as setting:
        pid = stopped.execute("SELECT pg_backend_pid()").fetchone()
        setting.execute(
            "UPDATE outbox_shard SET view = gen_random_uuid(), backends = jsonb_build_array(jsonb_build_object("
            "'pid', pid, 'started', backend_start)) FROM pg_stat_activity WHERE pid = %s",
            pid,
        )
        stopped.execute("SELECT FROM outbox_shard FOR SHARE")
        outbox.stash(10)
        start(until="drained").ends()
        assert outbox.left() == 0
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")


def test_a_strangers_lock_on_the_fence_is_named_and_waited_for(outbox: Outbox, start: Start) -> None:
    outbox.stash(10)
    with psycopg.connect(outbox.database) as stranger:
        stranger.execute("SELECT FROM outbox_shard FOR UPDATE")
        process = start()
        named = f"the session with process id {stranger.info.backend_pid} ("
        wait_until(lambda: any(named in event.get("error", "") for event in process.events))
        assert outbox.left() == 10
        stranger.rollback()
        wait_until(lambda: outbox.left() == 0)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_that_kafka_refuses_is_parked_and_the_others_go_out(
    outbox: Outbox, start: Start, delivery: str
) -> None:
    outbox.stash(50)
    outbox.query("UPDATE outbox SET kafka_header_values = ARRAY[]::text[] WHERE kafka_value = '17' RETURNING id")
    process = start(delivery=delivery, limits=CALM)  # at least once doubles records when it is unseated
    parked = process.wait_for("parked", refused=1)
    assert parked["reasons"] == [{"cause": "headers", "reason": "1 header names for 0 header values", "records": 1}]
    wait_until(lambda: outbox.left() == 0)
    waiting = "SELECT kafka_value, cause FROM outbox_parked ORDER BY number"
    assert outbox.query(waiting) == [("17", "headers"), ("27", None), ("37", None), ("47", None)]
    outbox.query("UPDATE outbox_parked SET kafka_header_values = ARRAY['17'], requested = 'retry' RETURNING id")
    wait_until(lambda: outbox.query(waiting) == [])
    assert outbox.by_key() == in_order(50)


def test_the_child_ends_when_its_pipe_closes_amid_a_backlog(outbox: Outbox, start: Start) -> None:
    outbox.stash(30_000)
    process = start(child=True)
    process.wait_for("view")
    assert process.popen.stdin is not None
    process.popen.stdin.close()
    process.ends()
    assert process.popen.returncode == 0
    start(until="drained").ends()
    for key, numbers in outbox.by_key().items():
        assert list(dict.fromkeys(numbers)) == in_order(30_000)[key]


def test_a_healthy_start_prints_nothing_but_events(outbox: Outbox, tmp_path: Path) -> None:
    outbox.stash(100)
    first_line = {"config": {**outbox.settings, "limits": CALM}, "until": "drained"}
    process = Process(CHILD, first_line=first_line, log=tmp_path / "stderr")
    try:
        process.ends()
    finally:
        process.end()
    assert process.wait_for("ended")["published"] == 100
    assert (tmp_path / "stderr").read_text() == ""
    assert process.failures == []


def test_the_child_loads_neither_airflow_nor_spark(outbox: Outbox) -> None:
    process = Process(CHILD, first_line={"config": outbox.settings}, environment=ENVIRONMENT)
    try:
        process.wait_for("measured")  # and so has all that a leader without records has
        maps = Path(f"/proc/{process.popen.pid}/maps").read_text()
    finally:
        process.end()
    assert "site-packages/confluent_kafka" in maps
    for module in ("pyarrow", "sqlalchemy", "numpy", "uvloop"):
        assert f"site-packages/{module}" not in maps
    assert "/_ssl." not in maps


def test_secrets_are_in_neither_arguments_nor_environment(outbox: Outbox, start: Start) -> None:
    password = str(conninfo_to_dict(outbox.database)["password"])
    process = start(child=True)
    process.wait_for("view")
    for file in ("cmdline", "environ"):
        assert password.encode() not in Path(f"/proc/{process.popen.pid}/{file}").read_bytes()
    assert password not in json.dumps(process.events)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"outbox_table": "nowhere"}, "airflow-outbox init"),
        ({"data_source": "host=127.0.0.1 port=1 dbname=x"}, "can't connect to Postgres"),
        ({"kafka": {"bootstrap.servers": "127.0.0.1:1"}}, "can't reach Kafka at 127.0.0.1:1"),
        ({"leader_topic": "not-there"}, "topic not-there does not exist. Run `airflow-outbox init`"),
        ({"kafka_producer": {"no.such.setting": 1}}, "no.such.setting"),
        ({"oops": 1}, "unknown setting oops"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_keeps_the_child_from_starting_is_said_with_what_to_do(
    start: Start, settings: dict[str, Any], says: str
) -> None:
    process = start(child=True, **settings)
    process.ends()
    assert process.popen.returncode == 1
    assert says in process.wait_for("error", retry_in=None)["error"]


def test_until_a_time(outbox: Outbox, start: Start) -> None:
    moment = time.time() + 3
    process = start(child=True, until=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)))
    process.ends()
    process.wait_for("ended", reason="time")
    assert time.time() > moment - 1  # it is told whole seconds


def test_garbage_on_stdin_is_refused() -> None:
    for line in ("no json", "[]", "{}", '{"config": 1}'):
        done = subprocess.run(CHILD, input=line + "\n", capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 1
        assert json.loads(done.stdout)["event"] == "error"
    assert (
        subprocess.run(CHILD, input="", capture_output=True, text=True, timeout=PATIENCE, check=False).returncode == 0
    )


def command(outbox: Outbox, tmp_path: Path, *arguments: str, status: int | None = 0) -> str:
    """Run one of the commands on an outbox, in this process. None: it may end with any status."""
    file = tmp_path / "operate.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    done = CliRunner().invoke(main, [arguments[0], "-f", str(file), *arguments[1:]])
    assert status is None or done.exit_code == status, (done.output, done.exception)
    return done.stdout if "json" in arguments else done.output  # notes go beside it


def status_of(outbox: Outbox, tmp_path: Path) -> dict[str, Any]:
    return json.loads(command(outbox, tmp_path, "status", "--output", "json", status=None))


def test_status_tells_who_leads_and_what_waits(outbox: Outbox, start: Start, tmp_path: Path) -> None:
    outbox.stash(7)
    before = status_of(outbox, tmp_path)
    assert before["backlog"] == 7
    assert before["oldest_age"] > 0
    assert before["shards"][0]["member"] is None
    assert "nobody yet" in command(outbox, tmp_path, "status", status=3)
    process = start()
    process.wait_for("view")
    after: dict[str, Any] = {}

    def is_all_published() -> bool:
        after.update(status_of(outbox, tmp_path))
        return bool(after["shards"][0]["published"] == 7 and after["shards"][0]["member"])

    wait_until(is_all_published, doing=lambda: str(after))
    assert (after["backlog"], after["oldest_age"]) == (0, None)
    [shard] = after["shards"]
    wait_until(lambda: shard["view"] in {event["view"] for event in process.events if event["event"] == "view"})
    assert shard["member"].endswith(f":{process.popen.pid}")
    assert 0 <= shard["silent_for"] < PATIENCE
    assert shard["in_flight"] == 0
    assert shard["last_error"] is None


def test_pause_and_resume(outbox: Outbox, start: Start, tmp_path: Path) -> None:
    process = start()
    process.wait_for("view")
    command(outbox, tmp_path, "pause")
    process.wait_for("progress", paused=True)
    outbox.stash(10)
    time.sleep(1.5)
    assert outbox.left() == 10
    other = start()  # a pause outlives its leader
    other.wait_for("progress")
    process.popen.terminate()
    process.ends()
    other.wait_for("progress", paused=True)
    assert outbox.left() == 10
    command(outbox, tmp_path, "resume")
    wait_until(lambda: outbox.left() == 0)


def test_handover(outbox: Outbox, start: Start, tmp_path: Path) -> None:
    assert "nobody leads" in command(outbox, tmp_path, "handover", status=1)
    # A busy machine unseats nobody; and a leader that finds no other member comes back while the command still waits.
    outbox.settings["limits"] = {"heartbeat_timeout": 10, "session_timeout": 15}
    first = start()
    first.wait_for("progress", standing="leading")
    assert "there is no other member" in command(outbox, tmp_path, "handover", status=1)

    def led() -> list[tuple[Any, ...]]:
        return outbox.query("SELECT view FROM outbox_shard WHERE member IS NOT NULL AND begun_view = view")

    def returns() -> int:
        return sum(event["event"] == "rejoined" for event in first.events)

    wait_until(led)
    before = led()
    second = start()
    wait_until(lambda: led() not in ([], before))  # it has joined: that unseats the leader for a moment
    outbox.stash(5000)
    pid, returned = f":{second.popen.pid}", returns()
    said = command(outbox, tmp_path, "handover")
    assert pid in said.split(" leads shard 0 instead of ")[0]
    wait_until(lambda: returns() > returned)
    wait_until(lambda: outbox.left() == 0)
    time.sleep(2)
    leaders: list[str | None] = []

    def is_led() -> bool:
        leaders.append(status_of(outbox, tmp_path)["shards"][0]["member"])
        return leaders[-1] is not None

    wait_until(is_led)
    if not second.was_unseated:
        assert pid in str(leaders[-1]), "who has handed over does not take it back"
    assert outbox.by_key() == in_order(5000)


def test_pump_stashes_what_it_is_told_to(outbox: Outbox, tmp_path: Path) -> None:
    options = ["--records", "500", "--keys", "7", "--size", "50", "--transaction", "20", "--rate", "1000"]
    begun = time.monotonic()
    said = command(outbox, tmp_path, "pump", "--topic", outbox.topic, *options)
    assert said.startswith("500 records stashed")
    assert time.monotonic() - begun > 0.4
    found = outbox.query("SELECT kafka_key, kafka_value, transaction_id::text FROM outbox ORDER BY id")
    assert [int(value.split()[0]) for _, value, _ in found] == list(range(500))
    assert {len(value) for _, value, _ in found} == {50}
    assert len({key for key, _, _ in found}) == 7
    assert len({transaction for _, _, transaction in found}) == 25
    said = command(outbox, tmp_path, "pump", "--topic", outbox.topic, "--records", "100", "--rollbacks", "0.5")
    assert 0 < int(said.split()[0]) < 100


def test_sigint_ends_it_too(start: Start) -> None:
    process = start()
    process.wait_for("view")
    os.kill(process.popen.pid, signal.SIGINT)
    process.ends()
    assert process.popen.returncode == 0
