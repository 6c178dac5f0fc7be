"""Each error that Kafka's client can report has a kind."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import KafkaError

from airflow_outbox.harvest.kafka.error_kinds import KINDS, NAMES, ErrorKind, kind_of

CODES = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.strip("_").isupper()}
"""All codes of the installed client by name."""
ERRORS = {name: code for name, code in CODES.items() if code != KafkaError.NO_ERROR}


def test_the_walk_is_over_a_whole_enumeration() -> None:
    assert {"UNKNOWN", "_BAD_MSG", "_INVALID_DIFFERENT_RECORD", "THROTTLING_QUOTA_EXCEEDED"} <= ERRORS.keys()
    assert len(ERRORS) > 180


@pytest.mark.parametrize(("name", "code"), ERRORS.items(), ids=ERRORS)
def test_each_code_has_a_kind(name: str, code: int) -> None:
    assert code in KINDS, f"say in the table of error_kinds.py what {name} ({code}) is about"
    assert kind_of(KafkaError(code)) is KINDS[code]


def test_no_code_has_two_kinds_and_no_name_is_made_up() -> None:
    named = Counter(name for names in NAMES.values() for name in names)
    assert [name for name, count in named.items() if count > 1] == []
    assert named.keys() == ERRORS.keys()


def test_a_code_of_a_later_release_narrows() -> None:
    assert kind_of(KafkaError(9_999)) is ErrorKind.UNCLEAR
    assert ErrorKind.UNCLEAR.narrows
