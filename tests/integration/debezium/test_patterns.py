"""Translated patterns match and replace in Postgres as in Python, which reads such patterns as Java does."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.debezium.topic_pattern import translated_pattern

_ATOMS = st.sampled_from(["a", "b", "\\.", "-", ".", "\\w", "\\d", "[ab]", "[^a]", "[a\\-.]", "[\\w.]"])
_QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}"])
_ITEMS = st.builds("{}{}".format, _ATOMS, _QUANTIFIERS)
_GROUPS = st.one_of(
    st.lists(_ITEMS, min_size=1, max_size=3).map(lambda items: f"({''.join(items)})"),
    st.sampled_from(["(ab|b)", "(a|b|1)", "(-|b1)"]),
)
_REGEXES = st.tuples(_GROUPS, st.lists(st.one_of(_GROUPS, _ITEMS), max_size=4)).map(
    lambda each: each[0] + "".join(each[1])
)
_TEXTS = st.text("ab1.-é", max_size=8)


def test_as_java(connection: psycopg.Connection[Any]) -> None:
    @settings(max_examples=150, database=None)
    @given(_REGEXES, _TEXTS)
    def hold(regex: str, text: str) -> None:
        pattern = translated_pattern(regex, "<$1>")
        ascii_regex = re.compile(regex, re.ASCII)
        expected = ascii_regex.sub(r"<\1>", text, count=1) if ascii_regex.fullmatch(text) else text
        query = "SELECT regexp_replace(%s, %s, %s)"
        if pattern.regex is None:
            return
        assert connection.execute(query, [text, pattern.regex, pattern.replacement]).fetchone() == (expected,)

    hold()
