"""Questions that a client loses: nobody answers them, and the client does not ask again by itself."""

from __future__ import annotations

from faults.frames import Request
from faults.late import LateScene
from faults.treatments import Drop
from support.harvesting import CHILD, Process

from airflow_outbox.demo.embedded.ports import LOOPBACK

METADATA = 3
"""The kind of a request for brokers and topics."""
WHILE_IT_JOINS = 4.0
"""Seconds from its first question on."""
PATIENT = {"socket.timeout.ms": 300_000}
"""So that librdkafka does not give a request up while the test waits. Its own interval for looks is as long."""


def test_a_member_joins_though_its_question_for_the_topic_is_lost(late_scene: LateScene) -> None:
    first: list[float] = []

    def early(request: Request) -> Drop | None:
        if request.api != METADATA:
            return None
        if not first:
            first.append(request.at)
        return Drop() if request.at < first[0] + WHILE_IT_JOINS else None

    lost = late_scene.frames.mistreat(early)
    consumer: dict[str, object] = {"bootstrap.servers": f"{LOOPBACK}:{late_scene.frames.port}", **PATIENT}
    config = {**late_scene.outbox.settings, "kafka_consumer": consumer}
    member = Process(list(CHILD), first_line={"config": config, "until": "forever"})
    late_scene.members.append(member)
    member.wait_for("elected")
    assert lost.struck.is_set()
