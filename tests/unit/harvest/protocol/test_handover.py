"""The members that try to lead a shard which an operator has asked to hand over."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from airflow_outbox.harvest.protocol.handover import Aside, StandIn, stand_in
from airflow_outbox.values.fence import ShardLook

OWN, OTHER = uuid4(), uuid4()
OFFERED = ShardLook(2, OWN, is_led=False, silent_for=0.5, hands_over=True)
PATIENCE = 6.0


def test_a_member_stands_in_only_for_a_leader_that_was_asked_and_has_let_go() -> None:
    assert stand_in(OFFERED) == StandIn(after=OWN)
    assert stand_in(replace(OFFERED, is_led=True)) is None
    assert stand_in(replace(OFFERED, hands_over=False)) is None, "one that has only ended leaves the rest to the group"
    assert stand_in(replace(OFFERED, view=None)) is None


@pytest.mark.parametrize(
    ("view", "is_led", "silent_for", "after", "is_over"),
    [
        (OWN, False, 3.0, PATIENCE, False),
        (OWN, False, 7.0, PATIENCE + 0.1, True),
        (OTHER, True, PATIENCE, 60.0, False),
        (OTHER, True, PATIENCE + 0.1, 60.0, True),
        (OTHER, False, 0.1, 1.0, True),
    ],
    ids=["not followed yet", "nobody follows", "the other leads", "the other is silent", "the other has ended"],
)
def test_an_owner_stays_aside_while_another_leads(
    view: UUID, is_led: bool, silent_for: float, after: float, is_over: bool
) -> None:
    look = ShardLook(2, view, is_led=is_led, silent_for=silent_for, hands_over=False)
    assert Aside(OWN, since=100.0).is_over(look, 100.0 + after, patience=PATIENCE) is is_over
