"""Which transactional ids may be left alone while Kafka can't end their last transaction."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.stuck import StuckIds


def test_an_id_of_which_all_is_known_is_left_alone_until_it_is_fenced() -> None:
    stuck = StuckIds()
    stuck.leave_alone(["a", "b"])
    assert stuck.left_alone == {"a", "b"}
    stuck.fenced("a")
    assert stuck.left_alone == {"b"}


def test_an_id_whose_commit_may_still_come_is_never_left_alone() -> None:
    stuck = StuckIds(uncertain={"a"})
    with pytest.raises(KafkaError, match="last transaction of a is committed"):
        stuck.leave_alone(["a", "b"])
    assert not stuck.left_alone
    stuck.fenced("a")
    stuck.leave_alone(["a", "b"])
    assert stuck.left_alone == {"a", "b"}
