"""A busy stream asks Kafka for little beside its transactions: how much of that in a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from faults.frames import Api, Request
from faults.late import LateScene
from faults.streams import BATCHES, streamed

pytestmark = pytest.mark.timed

MOST_A_SECOND = 12
"""Requests of any kind that is not of a transaction: heartbeats, their consumer, what is asked of topics."""
A_MOMENT = 0.25
"""Seconds: what takes longer than that between two commits is a pause of a busy machine, and not counted."""
LIST_OFFSETS = 2


def in_moments(requests: Sequence[Request], ends: Sequence[Request]) -> tuple[list[Request], float]:
    """The requests between commits that follow one another in moments, and how many seconds these moments last."""
    moments = [(one.at, two.at) for one, two in pairwise(ends) if two.at - one.at < A_MOMENT]
    found = [request for request in requests if any(begun < request.at <= over for begun, over in moments)]
    return found, sum(over - begun for begun, over in moments)


def test_a_busy_stream_asks_for_its_transactions_and_nothing_more(late_scene: LateScene) -> None:
    """That a batch can be read is told by the next ones, and not asked for."""
    stream, seconds = in_moments(*streamed(late_scene, extents=0))
    others = Counter(request.api for request in stream if request.transactional_id is None)
    batches = sum(request.api == Api.END for request in stream)
    assert batches >= BATCHES // 2, "a machine so slow that nothing is shown"
    # Now and then the next batches come too late.
    assert others.pop(LIST_OFFSETS, 0) <= batches // 4
    assert all(count <= MOST_A_SECOND * (seconds + 1) for count in others.values()), others
    assert seconds < batches / MOST_A_SECOND, "so slow that nothing is shown"
