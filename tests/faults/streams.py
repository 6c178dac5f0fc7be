"""What is asked of Kafka while a backlog is published."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from faults.frames import Api, Request, of
from faults.late import FrameServers, LateScene
from support.harvesting import CALM

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.postgres.table import OutboxTable

BATCH, BATCHES = 200, 150
BACKLOG = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %s, 'k' || number %% 10, number::text FROM generate_series(1, %s) AS number
"""


def streamed(scene: LateScene, extents: int) -> tuple[list[Request], Sequence[Request]]:
    """Publish a backlog, with extents or without. The requests after the first commit, to the last one, of whatever
    client; and the commits.
    """
    assert isinstance(scene.servers, FrameServers)
    if extents:
        scene.outbox.settings["positions"] = {"enabled": True}
        config = HarvestConfig.validated(scene.outbox.settings, source="test")
        with psycopg.connect(scene.outbox.database) as connection:
            names = KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id)
        assert make_internal_topics(config, names) == [names.extents_topic]
    scene.outbox.settings["kafka"] = {"bootstrap.servers": scene.servers.bootstrap}
    with psycopg.connect(scene.outbox.database) as connection:
        connection.execute(BACKLOG, (scene.outbox.topic, BATCH * BATCHES))
    before = len(scene.frames.seen)
    scene.leader(limits={**scene.limits, **CALM})
    scene.wait_until(lambda: scene.outbox.left() == 0)
    requests = scene.frames.seen[before:]
    ends = of(requests, Api.END)
    return [request for request in requests if ends[0].at < request.at <= ends[-1].at], ends
