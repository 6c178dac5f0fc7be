"""Another number of shards amid a load: the member that brings it about is stopped or killed at each of its steps."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from faults.processes import go_on, is_stopped
from faults.scene import EXACTLY_ONCE, Scene
from faults.zombie import command
from support.harvesting import SHORT_SESSION, Process
from support.sharding import config_of

from airflow_outbox.operate.reshard import prepare
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName

MOST_SHARDS = 4
LED = "SELECT shard, member FROM outbox_shard WHERE slots IS DISTINCT FROM '{}' AND member IS NOT NULL ORDER BY shard"


def ask(scene: Scene, shards: int) -> None:
    with psycopg.connect(scene.outbox.database, autocommit=True) as connection:
        ask_layout(connection, OutboxName.parse(scene.outbox.name), shards=shards)


def layout(scene: Scene) -> tuple[int, int]:
    """The layout's number, and how many shards there are."""
    [found] = scene.outbox.query("SELECT layout, shards FROM outbox_state")
    return int(found[0]), int(found[1])


def member_of(scene: Scene, shard: int) -> Process:
    """The member that leads a shard."""
    found: list[Process] = []

    def is_led() -> bool:
        led = {number: int(member.rpartition(":")[2]) for number, member in scene.outbox.query(LED)}
        found[:] = [member for member in scene.running if member.popen.pid == led.get(shard)]
        return bool(found)

    scene.wait_until(is_led)
    return found[0]


def become(scene: Scene, number: int, shards: int) -> None:
    """Wait until the outbox has that layout, and running members lead all of its shards."""

    def is_so() -> bool:
        running = {member.popen.pid for member in scene.running}
        led = [shard for shard, member in scene.outbox.query(LED) if int(member.rpartition(":")[2]) in running]
        return layout(scene) == (number, shards) and led == list(range(shards))

    scene.wait_until(is_so)


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE])
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("reshard", marks=pytest.mark.long),
        pytest.param("complete another shard", marks=pytest.mark.long),
        "write the layout",
    ],
)
def test_up_down_and_up_again_with_a_stop_or_a_kill_at_each_change(scene: Scene, point: str) -> None:
    scene.limits, scene.is_sharded = SHORT_SESSION, True
    prepare(config_of(scene.outbox), shards=MOST_SHARDS)
    if point == "complete another shard":
        ask(scene, 2)  # nobody has led, so they are there at once
    number, _ = layout(scene)
    late = scene.leader(command=command(stop=point))
    become(scene, number, layout(scene)[1])
    scene.midway()
    os.kill(late.popen.pid, signal.SIGUSR1)
    ask(scene, MOST_SHARDS)
    scene.wait_until(lambda: is_stopped(late))
    others = [scene.member(), scene.member()]
    become(scene, number + 1, MOST_SHARDS)
    since = go_on(late)
    scene.next_event(late, "fenced", "stood_by", "elected", since=since)
    assert layout(scene) == (number + 1, MOST_SHARDS), "a leader of the old layout changes nothing"
    scene.midway()

    first = member_of(scene, 0)
    ask(scene, 2)
    first.popen.kill()
    first.popen.wait()
    become(scene, number + 2, 2)
    scene.member()
    scene.midway()

    stopped = next(member for member in [late, *others] if member in scene.running)
    os.kill(stopped.popen.pid, signal.SIGSTOP)
    ask(scene, MOST_SHARDS)
    scene.wait_until(lambda: layout(scene) == (number + 3, MOST_SHARDS))
    scene.midway()
    go_on(stopped)
    become(scene, number + 3, MOST_SHARDS)
    scene.ends_well()
