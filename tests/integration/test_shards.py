"""Several shards on real servers: spread over members, under kills, and with another number of them meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from support.harvesting import CALM, CHILD, SHORT_SESSION, Outbox, Process, make_outbox, wait_until
from support.sharding import config_of, divided

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.operate.adopt import adopt
from airflow_outbox.operate.adopt_copy import make_new_outbox
from airflow_outbox.operate.reshard import prepare, reshard
from airflow_outbox.operate.status import read_status
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName

KEYS = 40
LED_BY = "SELECT shard, member FROM outbox_shard WHERE cardinality(slots) > 0 AND member IS NOT NULL"
CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name LIKE 'airflow-outbox %' AND datname = current_database()"
)


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=SHORT_SESSION)


def resharded(outbox: Outbox, shards: int) -> None:
    assert reshard(config_of(outbox), shards=shards, patience=180, tell=lambda _: None).shards == shards


@pytest.fixture
def start(outbox: Outbox) -> Iterator[Callable[..., Process]]:
    """Starts members, with other settings, too."""
    members: list[Process] = []

    def started(**settings: Any) -> Process:
        config = {**outbox.settings, **settings}
        members.append(Process(CHILD, first_line={"config": config, "until": "forever"}))
        return members[-1]

    yield started
    for member in members:
        member.end()


@contextmanager
def stashing(outbox: Outbox) -> Iterator[list[int]]:
    """Stash records all the time; how many, in the end."""
    ending, stashed = threading.Event(), [0]

    def stash() -> None:
        while not ending.is_set():
            outbox.stash(200, keys=KEYS, start=stashed[0])
            stashed[0] += 200

    thread = threading.Thread(target=stash)
    thread.start()
    try:
        yield stashed
    finally:
        ending.set()
        thread.join()


def members_of(outbox: Outbox) -> dict[int, str]:
    return dict(outbox.query(LED_BY))


def require_all(outbox: Outbox, records: int) -> None:
    """Every record came once, each key's in order."""
    wait_until(lambda: outbox.left() == 0, doing=lambda: f"{outbox.left()} left")
    expected = {f"k{key}": list(range(key, records, KEYS)) for key in range(KEYS)}
    assert outbox.by_key() == {key: numbers for key, numbers in expected.items() if numbers}


def test_shards_are_spread_over_members_and_go_to_others(
    outbox: Outbox, start: Callable[..., Process], tmp_path: Path
) -> None:
    divided(outbox, 4)
    first, _ = start(), start(shards=2)  # the layout wins
    wait_until(lambda: len(members_of(outbox)) == 4 and len(set(members_of(outbox).values())) == 2, doing="spreading")
    with stashing(outbox) as stashed:
        wait_until(lambda: stashed[0] > 2_000)
        first.popen.kill()
        wait_until(lambda: len(set(members_of(outbox).values())) == 1, doing=lambda: str(members_of(outbox)))
    require_all(outbox, stashed[0])
    # The one that is left has a connection for each shard, and four that they share. The killed one's may linger.
    wait_until(lambda: outbox.query(CONNECTIONS)[0][0] <= 4 + 4, doing=lambda: str(outbox.query(CONNECTIONS)))
    assert [shard.shard for shard in status_of(outbox).shards] == [0, 1, 2, 3]
    said = commanded(outbox, tmp_path, "status", shards=2)
    assert "shards: 4, whatever the configuration says. `airflow-outbox reshard 2` gives" in " ".join(said.split())


def test_a_handover_of_one_shard_moves_no_other(outbox: Outbox, start: Callable[[], Process], tmp_path: Path) -> None:
    divided(outbox, 4)
    outbox.settings["limits"] = {"session_timeout": 12, "heartbeat_timeout": 10}
    first, second = start(), start()
    wait_until(lambda: len(set(members_of(outbox).values())) == 2 and len(members_of(outbox)) == 4, doing="spreading")
    wait_until(lambda: led_by(outbox, first) == led_by(outbox, second) == 2 and all_have_begun(outbox), doing="leading")
    own = [shard for shard, member in members_of(outbox).items() if member.endswith(f":{first.popen.pid}")]
    before = views_of(outbox)
    with stashing(outbox) as stashed:
        wait_until(lambda: stashed[0] > 1_000)
        said = commanded(outbox, tmp_path, "handover", "--shard", str(own[0]))
        assert f":{second.popen.pid} leads shard {own[0]} instead of " in said
        moved = {shard for shard, view in views_of(outbox).items() if view != before[shard]}
        assert moved == {own[0]} or first.was_unseated or second.was_unseated
        second.popen.kill()  # the owner takes it back, and gets the others by the group
        wait_until(lambda: led_by(outbox, first) == 4, doing=lambda: str(members_of(outbox)))
    require_all(outbox, stashed[0])
    assert views_of(outbox)[own[1]] == before[own[1]] or first.was_unseated


def test_a_handover_of_all_shards_gives_each_to_another_member(
    outbox: Outbox, start: Callable[[], Process], tmp_path: Path
) -> None:
    divided(outbox, 4)
    outbox.settings["limits"] = CALM
    members = start(), start()
    wait_until(lambda: [led_by(outbox, each) for each in members] == [2, 2] and all_have_begun(outbox), doing="leading")
    before = members_of(outbox)
    with stashing(outbox) as stashed:
        said = " ".join(commanded(outbox, tmp_path, "handover").split())
        for shard, member in before.items():
            [other] = {*before.values()} - {member}
            assert f"{other} leads shard {shard} instead of {member}" in said
    require_all(outbox, stashed[0])


def led_by(outbox: Outbox, member: Process) -> int:
    return sum(name.endswith(f":{member.popen.pid}") for name in members_of(outbox).values())


def all_have_begun(outbox: Outbox) -> bool:
    return not outbox.query("SELECT FROM outbox_shard WHERE slots <> '{}' AND begun_view IS DISTINCT FROM view")


def views_of(outbox: Outbox) -> dict[int, UUID]:
    return dict(outbox.query("SELECT shard, view FROM outbox_shard"))


def commanded(outbox: Outbox, folder: Path, command: str, *options: str, **settings: Any) -> str:
    file = folder / "outbox.yaml"
    file.write_text(yaml.safe_dump({**outbox.settings, **settings}))
    return CliRunner().invoke(main, [command, "-f", str(file), *options]).output


def status_of(outbox: Outbox) -> Any:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        return read_status(connection, OutboxName.parse(outbox.name))


def test_another_number_of_shards_while_it_harvests(outbox: Outbox, start: Callable[[], Process]) -> None:
    outbox.settings["limits"] = CALM
    first, second = start(), start()
    first.wait_for("progress")
    with stashing(outbox) as stashed:
        for shards in (4, 2, 1, 3):
            resharded(outbox, shards)
            before = stashed[0]
            wait_until(lambda before=before: stashed[0] > before + 1_000)
            wait_until(lambda shards=shards: len(led(outbox)) == shards, doing=lambda: str(led(outbox)))
    require_all(outbox, stashed[0])

    def told() -> list[tuple[int, int]]:
        events = [event for member in (first, second) for event in member.events if event["event"] == "resharded"]
        return sorted((event["before"], event["shards"]) for event in events)

    wait_until(lambda: told() == [(1, 3), (1, 4), (2, 1), (4, 2)], doing=lambda: str(told()))
    assert status_of(outbox).layout.number == 5


def led(outbox: Outbox) -> list[tuple[Any, ...]]:
    return outbox.query(
        "SELECT shard, member FROM outbox_shard WHERE slots IS DISTINCT FROM '{}' AND member IS NOT NULL"
    )


def test_a_killed_resharder_leaves_the_rest_to_the_next(outbox: Outbox, start: Callable[[], Process]) -> None:
    divided(outbox, 3)
    first = start()
    wait_until(lambda: len(led(outbox)) == 3)
    prepare(config_of(outbox), shards=5)
    outbox.stash(500, keys=KEYS)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, OutboxName.parse(outbox.name), shards=5)
    first.popen.kill()
    start()
    wait_until(lambda: len(led(outbox)) == 5, doing=lambda: str(led(outbox)))
    require_all(outbox, 500)


def test_what_stays_at_one_shard_says_why(outbox: Outbox) -> None:
    for settings, why in (({"atomic": True}, "it is atomic"), ({"delivery": "at_least_once"}, "at least once")):
        with pytest.raises(ConfigurationError, match=why):
            prepare(config_of(outbox, **settings), shards=2)
    divided(outbox, 2)
    for settings, why in (({"atomic": True}, "it is atomic"), ({"delivery": "at_least_once"}, "at least once")):
        member = Process(CHILD, first_line={"config": {**outbox.settings, **settings}, "until": "forever"})
        try:
            member.ends()
            assert why in str(member.events)
        finally:
            member.end()
    outbox.query("UPDATE outbox_shard SET view = gen_random_uuid(), slots_view = NULL, slots = NULL")
    with pytest.raises(OutboxError, match="reshard --withdraw"):
        reshard(config_of(outbox), shards=3, patience=0.2, tell=lambda _: None)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, OutboxName.parse(outbox.name), shards=None)
    assert outbox.query("SELECT shards_wanted, shards_wanted_at FROM outbox_state") == [(None, None)]


def test_an_adoption_is_for_all_shards(outbox: Outbox, start: Callable[[], Process]) -> None:
    divided(outbox, 4)
    member = start()
    outbox.stash(400, keys=KEYS)
    wait_until(lambda: outbox.left() == 0)
    outbox.query("SELECT setval('outbox_id_seq', 10)")
    wait_until(lambda: outbox.query("SELECT halted FROM outbox_state")[0][0], doing=lambda: str(member.events))
    wait_until(lambda: {event.get("shard") for event in member.events if "set back" in str(event)} >= {0, 1, 2, 3})
    member.end()
    adoption = adopt(config_of(outbox), reason="a test", nothing_lost=True, accept=lambda _: True)
    assert adoption is not None
    assert adoption.incarnation == 2
    assert {incarnation for (incarnation,) in outbox.query("SELECT incarnation FROM outbox_shard")} == {2}
    start()
    outbox.stash(400, keys=KEYS, start=400)
    require_all(outbox, 800)


def test_a_copy_forgets_all_shards(outbox: Outbox, start: Callable[[], Process]) -> None:
    divided(outbox, 4)
    member = start()
    outbox.stash(100, keys=KEYS)
    wait_until(lambda: outbox.left() == 0)
    member.end()
    wait_until(lambda: outbox.query(CONNECTIONS)[0][0] == 0)
    outbox.query("UPDATE outbox_shard SET heartbeat_at = NULL")
    assert make_new_outbox(config_of(outbox), reason="a test", accept=lambda _: True) is not None
    known = "SELECT DISTINCT view, watermark::text, ledger_topic_id FROM outbox_shard JOIN outbox_ledger USING (shard)"
    assert outbox.query(known) == [(None, None, None)]
