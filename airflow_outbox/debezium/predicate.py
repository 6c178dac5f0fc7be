"""The predicate of a connector's router: which tables' rows it routes.

Connect's `TopicNameMatches` goes by the name that a table's topic has before it is routed, so it is settled once for a
table. Other predicates look at each record, and are not translated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]")
"""Debezium has `_` in a topic's name for each character that Kafka does not allow."""
TOPIC_NAME_MATCHES = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
_SCHEMA = "public"
_READ_OTHERWISE = re.compile(r"&&|\[[^\]\\]*\[")
"""Java's intersections and unions of classes, which are something else in Python."""


class PredicateError(ValueError):
    """A predicate that is not translated. Its text says why."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """The tables whose topics match a pattern; with `is_negated`, all others."""

    name: str
    pattern: re.Pattern[str]
    topic_prefix: str
    is_negated: bool

    def passes(self, table: str) -> bool:
        """Whether the router gets the rows of a table, named as in `table.include.list`."""
        plain = table.replace('"', "")
        parts = (self.topic_prefix, *(plain if "." in plain else f"{_SCHEMA}.{plain}").split("."))
        topic = ".".join(UNNAMEABLE.sub("_", each) for each in parts)
        return (self.pattern.fullmatch(topic) is not None) is not self.is_negated


def translated_predicate(settings: Mapping[str, str], name: str, *, topic_prefix: str, is_negated: bool) -> Predicate:
    """Return the predicate of this name. Raises PredicateError."""
    kind = settings.get(f"predicates.{name}.type")
    if kind != TOPIC_NAME_MATCHES:
        raise PredicateError(f"{kind} looks at each record" if kind else f"predicates.{name}.type is missing")
    if not topic_prefix:
        raise PredicateError("the names of topics begin with topic.prefix, which is missing or used in another way")
    pattern = settings.get(f"predicates.{name}.pattern", "")
    if _READ_OTHERWISE.search(pattern):
        raise PredicateError(f"its pattern {pattern!r} has a class of classes, which is not translated")
    try:
        return Predicate(name, re.compile(pattern, re.ASCII), topic_prefix, is_negated)
    except re.error as error:
        raise PredicateError(f"its pattern {pattern!r} can't be read: {error}") from None
