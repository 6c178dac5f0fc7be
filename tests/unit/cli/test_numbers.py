"""Numbers of options: what is taken, and what is refused."""

from __future__ import annotations

import click
import pytest

from airflow_outbox.cli.numbers import Finite, Whole


def test_a_whole_number_that_postgres_can_hold_is_taken() -> None:
    assert Whole(1).convert(str(2**63 - 1), None, None) == 2**63 - 1
    for text in ("0", "-1", "1.5", "x", str(2**63)):
        with pytest.raises(click.BadParameter):
            Whole(1).convert(text, None, None)


def test_the_largest_number_is_named_when_it_is_passed() -> None:
    with pytest.raises(click.BadParameter, match="11 is too large: give 10 at most"):
        Whole(0, most=10).convert("11", None, None)


def test_a_number_can_be_counted_with() -> None:
    assert Finite(0).convert("1.5", None, None) == 1.5
    for text in ("nan", "inf", "1e400", "-1"):
        with pytest.raises(click.BadParameter):
            Finite(0).convert(text, None, None)
