"""A batch's requests to Kafka, counted between the client and the broker, whoever of the clients asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import psycopg
import pytest
from faults.frames import Api, Request, of
from faults.late import FrameServers, LateScene
from support.harvesting import CALM, PARTITIONS

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.postgres.table import OutboxTable

BATCH, BATCHES = 200, 150
LEDGER_REQUESTS = 2
"""Requests with a batch's records of the ledger, at most: the first one and its entry."""
MOST_A_SECOND = 12
"""Requests of any other kind: heartbeats, their consumer, what is asked of topics."""
A_MOMENT = 0.25
"""Seconds: what takes longer than that between two commits is a pause of a busy machine, and not counted."""
LIST_OFFSETS = 2
BACKLOG = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %s, 'k' || number %% 10, number::text FROM generate_series(1, %s) AS number
"""


def in_moments(requests: Sequence[Request], ends: Sequence[Request]) -> tuple[list[Request], float]:
    """The requests between commits that follow one another in moments, and how many seconds these moments last."""
    moments = [(one.at, two.at) for one, two in pairwise(ends) if two.at - one.at < A_MOMENT]
    found = [request for request in requests if any(begun < request.at <= over for begun, over in moments)]
    return found, sum(over - begun for begun, over in moments)


@pytest.mark.timed
@pytest.mark.long(extents=1)
@pytest.mark.parametrize("extents", [0, 1])
def test_a_busy_stream_asks_kafka_for_its_transactions_and_nothing_more(late_scene: LateScene, extents: int) -> None:
    """That a batch can be read is told by the next ones, and not asked for. Its extents, where positions are on, take
    one request, and one to add their partition.
    """
    scene = late_scene
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
    stream = [request for request in requests if ends[0].at < request.at <= ends[-1].at]
    counts = Counter(request.api for request in stream if request.transactional_id is not None)
    batches = len(ends) - 1
    assert len(ends) >= BATCHES
    assert counts[Api.END] == batches
    assert counts[Api.ADD_PARTITIONS] <= (2 + extents) * batches, counts
    assert counts[Api.PRODUCE] <= (PARTITIONS + LEDGER_REQUESTS + extents) * batches, counts
    assert counts.keys() <= {Api.END, Api.ADD_PARTITIONS, Api.PRODUCE, Api.INIT_PRODUCER_ID}
    stream, seconds = in_moments(stream, ends)
    others = Counter(request.api for request in stream if request.transactional_id is None)
    batches = sum(request.api == Api.END for request in stream)
    assert batches >= BATCHES // 2, "a machine so slow that nothing is shown"
    # On a busy machine the next batches may come too late now and then.
    assert others.pop(LIST_OFFSETS, 0) <= batches // 4
    assert all(count <= MOST_A_SECOND * (seconds + 1) for count in others.values()), others
    assert seconds < batches / MOST_A_SECOND, "so slow that nothing is shown"
