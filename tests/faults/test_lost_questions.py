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
SOON = 55.0
"""Seconds: below librdkafka's own interval of 300 s, and the 60 s after which it gives a request up."""


def test_a_member_joins_though_its_question_for_the_topic_is_lost(late_scene: LateScene) -> None:
    first: list[float] = []

    def early(request: Request) -> Drop | None:
        if request.api != METADATA:
            return None
        if not first:
            first.append(request.at)
        return Drop() if request.at < first[0] + WHILE_IT_JOINS else None

    lost = late_scene.frames.mistreat(early)
    consumer = {"bootstrap.servers": f"{LOOPBACK}:{late_scene.frames.port}"}
    config = {**late_scene.outbox.settings, "kafka_consumer": consumer}
    member = Process(list(CHILD), first_line={"config": config, "until": "forever"})
    late_scene.members.append(member)
    member.wait_for("elected", within=SOON)
    assert lost.struck.is_set()
