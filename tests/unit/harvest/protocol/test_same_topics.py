"""When a term has to ask whether a topic is still the one that it has begun to write to."""

from __future__ import annotations

import pytest

from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.harvest.protocol.same_topics import SameTopics

PRODUCERS = 2


@pytest.fixture
def same() -> SameTopics:
    """Those of a term that has written ten records, from offset 100 on, to partition 0 of topic t."""
    same = SameTopics(PRODUCERS)
    assert not same.sending({"t": "id"})
    assert same.doubtful([Extent("t", 0, 100, 109, 10)]) == {"t": "id"}
    return same


def test_a_topic_with_another_id_is_not_the_same(same: SameTopics) -> None:
    assert not same.sending({"t": "id", "u": "another"})
    assert same.sending({"t": "new", "u": "another"}) == {"t"}
    assert same.sending({"t": "new"}) == {"t"}
    assert same.ids({"t", "u", "v"}) == {"t": "id", "u": "another"}


@pytest.mark.parametrize(
    ("extent", "asks"),
    [
        pytest.param(Extent("t", 0, 110, 119, 10), False, id="no marker yet"),
        pytest.param(Extent("t", 0, 110 + PRODUCERS, 119 + PRODUCERS, 10), False, id="a marker of each producer"),
        pytest.param(Extent("t", 0, 111, 121, 10), False, id="a marker among them"),
        pytest.param(Extent("t", 0, 111 + PRODUCERS, 120 + PRODUCERS, 10), True, id="somebody writes before them"),
        pytest.param(Extent("t", 0, 110, 130, 10), True, id="somebody writes among them"),
        pytest.param(Extent("t", 0, 0, 9, 10), True, id="a new log"),
        pytest.param(Extent("t", 0, 110, 5, 10), True, id="a new log amid them"),
        pytest.param(Extent("t", 0, 110, 112, 10), True, id="a new log amid them, longer"),
        pytest.param(Extent("t", 1, 110, 119, 10), True, id="another partition"),
    ],
)
def test_offsets_show_that_the_log_is_the_same_or_it_is_asked(same: SameTopics, extent: Extent, asks: bool) -> None:
    assert same.doubtful([extent]) == ({"t": "id"} if asks else {})


def test_each_record_is_compared_with_the_last_ones_before_it(same: SameTopics) -> None:
    for first in range(111, 1111, 11):  # ten records and a marker each
        assert not same.doubtful([Extent("t", 0, first, first + 9, 10)])
