"""The choice of parked records that an address makes."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from fastapi import HTTPException

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.operate.parked_requests import Choice
from airflow_outbox.ui.access import Asked, Visitor
from airflow_outbox.ui.filtering import CAUSES, Filter, choice_confirmed, filter_acted_on, filter_read
from airflow_outbox.ui.outboxes import OutboxKey

ASKED = Asked(Visitor(None), OutboxKey("c", "a b&c"), (), may_act=True, may_see_values=True)


def test_an_address_says_what_was_chosen() -> None:
    wanted = Filter(topic="t&u=1", key="#?\n", cause="too_large", discarded=True)
    assert parse_qs(wanted.query(ASKED, up_to=7)) == {
        "outbox": ["c:a b&c"],
        "topic": ["t&u=1"],
        "key": ["#?\n"],
        "cause": ["too_large"],
        "discarded": ["True"],
        "up_to": ["7"],
    }
    assert Filter().query(ASKED) == "outbox=c%3Aa+b%26c"


def test_empty_fields_are_not_given() -> None:
    assert filter_read(ASKED, topic="", key="", cause="") == Filter()
    assert filter_acted_on(ASKED, Filter(topic="t", discarded=True)) == Filter(topic="t")


def test_everything_is_meant_only_where_it_is_said() -> None:
    assert choice_confirmed(Filter(), up_to=7, everything=True) == Choice(everything=True, up_to=7)
    assert choice_confirmed(Filter(number=3), up_to=7) == Choice(numbers=(3,), up_to=7)
    for wanted, everything in ((Filter(), False), (Filter(topic="t"), True)):
        with pytest.raises(HTTPException, match="Say which records"):
            choice_confirmed(wanted, up_to=7, everything=everything)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_can_be_chosen(cause: str) -> None:
    assert filter_read(ASKED, cause=cause).choice() == Choice(cause=cause)
    with pytest.raises(ConfigurationError):
        Choice(cause=cause + "x")
