"""A batch's requests to Kafka, counted between the client and the broker, whoever of the clients asks."""

from __future__ import annotations

from collections import Counter

import pytest
from faults.frames import Api
from faults.late import LateScene
from faults.streams import BATCHES, streamed
from support.harvesting import PARTITIONS

LEDGER_REQUESTS = 2
"""Requests with a batch's records of the ledger, at most: the first one and its entry."""


@pytest.mark.long(extents=1)
@pytest.mark.parametrize("extents", [0, 1])
def test_a_busy_stream_asks_kafka_for_few_requests_a_transaction(late_scene: LateScene, extents: int) -> None:
    """Its extents, where positions are on, take one request, and one to add their partition."""
    stream, ends = streamed(late_scene, extents)
    counts = Counter(request.api for request in stream if request.transactional_id is not None)
    batches = len(ends) - 1
    assert len(ends) >= BATCHES
    assert counts[Api.END] == batches
    assert counts[Api.ADD_PARTITIONS] <= (2 + extents) * batches, counts
    assert counts[Api.PRODUCE] <= (PARTITIONS + LEDGER_REQUESTS + extents) * batches, counts
    assert counts.keys() <= {Api.END, Api.ADD_PARTITIONS, Api.PRODUCE, Api.INIT_PRODUCER_ID}
