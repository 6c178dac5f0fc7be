"""A rolling migration from goharvest: its members and ours in one group, on one table, under load."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from faults.fake_goharvest import FakeGoharvest
from faults.processes import go_on
from faults.scene import AT_LEAST_ONCE, Scene
from support.harvesting import COMMAND, Process, make_topic


def goharvest_file(scene: Scene, *, leader_topic: str, group_id: str) -> str:
    """A reaper.yaml as goharvest reads it, too."""
    harvest = {
        "baseKafkaConfig": {"bootstrap.servers": scene.servers.kafka.bootstrap},
        "producerKafkaConfig": {"compression.type": "lz4"},
        "leaderTopic": leader_topic,
        "leaderGroupID": group_id,
        "dataSource": scene.outbox.database,
        "outboxTable": "outbox",
        "limits": {"heartbeatTimeout": "2s", "markBackoff": "10ms", "maxInFlightRecords": 1000},
    }
    return yaml.safe_dump({"harvest": harvest, "logging": {"level": "Warn"}})


@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE])
def test_rolling_from_goharvest_to_ours_and_back_and_for_good(scene: Scene, topic_prefix: str, tmp_path: Path) -> None:
    leader_topic, group_id = topic_prefix + "goharvest-leader", topic_prefix + "goharvest"
    make_topic({"bootstrap.servers": scene.servers.kafka.bootstrap}, leader_topic, partitions=1)
    file = tmp_path / "reaper.yaml"
    file.write_text(goharvest_file(scene, leader_topic=leader_topic, group_id=group_id))

    def goharvest() -> FakeGoharvest:
        return FakeGoharvest(
            data_source=scene.outbox.database,
            bootstrap=scene.servers.kafka.bootstrap,
            leader_topic=leader_topic,
            group_id=group_id,
        )

    def ours() -> Process:
        member = Process([*COMMAND, "harvest", "-f", str(file)])
        scene.members.append(member)
        return member

    theirs = goharvest()
    scene.wait_until(lambda: theirs.leader_id is not None)
    scene.midway()
    scene.wait_until(lambda: theirs.published > 0)

    first = ours()
    first.wait_for("started")
    scene.wait_until(lambda: scene.group_members(group_id) == 2)
    scene.wait_until(lambda: scene.marked() > 0)
    theirs.stop()
    first.wait_for("view")
    scene.midway()
    scene.wait_until(lambda: scene.published_by(first) > 0)

    theirs = goharvest()
    scene.wait_until(lambda: scene.group_members(group_id) == 2)
    scene.stop_in_flight(first)
    first.popen.terminate()
    go_on(first)
    first.ends()
    assert first.popen.returncode == 0
    scene.wait_until(lambda: theirs.leader_id is not None)
    scene.midway()
    scene.wait_until(lambda: theirs.published > 0)

    last = ours()
    last.wait_for("started")
    scene.wait_until(lambda: scene.group_members(group_id) == 2)
    scene.wait_until(lambda: scene.marked() > 0)
    theirs.stop()
    last.wait_for("view")
    scene.midway()
    scene.ends_well()
    assert scene.published_by(last) > 0
