"""Which transactional ids may be left alone while Kafka can't end their last transaction."""

from __future__ import annotations

from uuid import UUID

import pytest

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.protocol.recovery import require_given_up
from airflow_outbox.values.fence import DatabaseIdentity, Fence, Flushed, LedgerPosition, OperatorRequest, recorded_ids
from airflow_outbox.values.records import Snapshot


def test_an_id_of_which_all_is_known_is_left_alone_until_it_is_fenced() -> None:
    stuck = StuckIds()
    stuck.leave_alone(["x.0", "x.2"])
    assert stuck.free("x", 2) == ["x.1", "x.3"]
    stuck.fenced("x.0")
    assert stuck.free("x", 2) == ["x.0", "x.1"]


def test_an_id_whose_commit_may_still_come_is_never_left_alone() -> None:
    stuck = StuckIds(uncertain={"x.0"})
    with pytest.raises(KafkaError, match=r"last transaction of x\.0 is committed"):
        stuck.leave_alone(["x.0", "x.1"])
    assert not stuck.left_alone
    stuck.fenced("x.0")
    stuck.leave_alone(["x.0", "x.1"])
    assert stuck.left_alone == {"x.0", "x.1"}


FENCE = Fence(
    request=OperatorRequest(),
    outbox_id=UUID(int=1),
    incarnation=1,
    delivery="exactly_once",
    transactional_ids=tuple(recorded_ids(["x.1", "x.2", "x.0"], given_up=["x.0"])),
    recorded=DatabaseIdentity(1, 1, 1, 1),
    present=DatabaseIdentity(1, 1, 1, 1),
    witness=LedgerPosition(),
    last_drawn=0,
    beats=0,
    next_transaction_id=1,
    newest_transaction_id=0,
    begun_view=UUID(int=2),
)


def test_the_fence_row_tells_which_producers_are_given_up() -> None:
    assert FENCE.producers == {"x.0", "x.1", "x.2"}
    assert FENCE.given_up == {"x.0"}


def test_only_a_producer_that_is_given_up_may_stay_unfenced() -> None:
    require_given_up(FENCE, ["x.0"], own_views=())
    require_given_up(FENCE, ["x.0", "x.1"], own_views={UUID(int=2)})
    with pytest.raises(KafkaError, match=r"last transaction of an earlier leader, of x\.1"):
        require_given_up(FENCE, ["x.0", "x.1"], own_views={UUID(int=3)})


def test_counts_go_on_under_an_earlier_watermark() -> None:
    earlier = Flushed(Snapshot(1, 1), 3, {"t": 5}, {"t": 1})
    later = Flushed(Snapshot(2, 2), 7, {"t": 9, "u": 1}, {"u": 2})
    assert later.behind(earlier) == Flushed(Snapshot(1, 1), 3, {"t": 5}, {"t": 4, "u": 3})
