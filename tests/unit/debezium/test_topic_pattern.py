"""Java's patterns in Postgres' words: those that both read alike, and no others."""

from __future__ import annotations

import pytest

from airflow_outbox.debezium.topic_pattern import (
    DEFAULT_REGEX,
    DEFAULT_REPLACEMENT,
    PatternError,
    TopicPattern,
    translated_pattern,
)


@pytest.mark.parametrize(
    ("regex", "replacement", "pattern"),
    [
        (DEFAULT_REGEX, DEFAULT_REPLACEMENT, TopicPattern(["outbox.event.", None])),
        (DEFAULT_REGEX, "${routedByValue}", TopicPattern([None])),
        ("(.*)", "$1.events", TopicPattern([None, ".events"])),
        (DEFAULT_REGEX, "all", TopicPattern(["all"])),
        (DEFAULT_REGEX, "a\\$$1\\\\", TopicPattern(["a$", None, "\\"])),
        ("(?<a>\\w+)-(.*)", "$2.${a}", TopicPattern(regex="^([A-Za-z0-9_]+)-([^\\n\\r]*)$", replacement="\\2.\\1")),
        ("^(?:a|b)\\.([^.]+)$", "x-$1", TopicPattern(regex="^(?:a|b)\\.([^.]+)$", replacement="x-\\1")),
        ("a{2,3}b?[\\d_-]", "\\\\", TopicPattern(regex="^a{2,3}b?[0-9_-]$", replacement="\\\\")),
    ],
)  # fmt: skip
def test_translated(regex: str, replacement: str, pattern: TopicPattern) -> None:
    assert translated_pattern(regex, replacement) == pattern


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(.*?)x", "not greedy"),
        ("(.*+)x", "not greedy"),
        ("(ab)*", "a quantifier behind a group"),
        ("(?i)a", "sets flags"),
        ("(?=a)b", "looks ahead"),
        ("a|b", "alternatives"),
        ("(a|ab)(c)", "one begins with another"),
        ("(a|b.)", "alternatives"),
        ("(a", "not closed"),
        ("a)", "closes nothing"),
        ("[a", "not closed"),
        ("[a[b]]", "in a class"),
        ("[a&&b]", "in a class"),
        ("\\bx", r"has '\\b'"),
        ("x\\", "at the end"),
        ("a$b", "'\\$'"),
        ("*a", "'\\*'"),
    ],
)
def test_refused(regex: str, says: str) -> None:
    with pytest.raises(PatternError, match=says):
        translated_pattern(regex, "x")


@pytest.mark.parametrize("replacement", ["$2", "${other}", "$", "${}", "$x"])
def test_a_group_that_is_not_there(replacement: str) -> None:
    with pytest.raises(PatternError, match="names a group"):
        translated_pattern("(a)b", replacement)
    with pytest.raises(PatternError, match="names a group"):
        translated_pattern(DEFAULT_REGEX, replacement)
