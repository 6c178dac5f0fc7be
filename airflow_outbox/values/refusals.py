"""Why a record can't be published: values that engine, parked table and commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a record can't be published."""

    ID = "id"
    HEADERS = "headers"
    TOPIC_NAME = "topic_name"
    UNKNOWN_TOPIC = "unknown_topic"
    NOT_AUTHORIZED = "not_authorized"
    UNAVAILABLE = "unavailable"
    CLOCK = "clock"
    PARTITION = "partition"
    TOO_LARGE = "too_large"
    UNTRIED = "untried"
    SPREAD = "spread"
    REFUSED = "refused"

    @property
    def is_of_the_topic(self) -> bool:
        """Whether no record of the topic can be published."""
        return self in (
            Cause.TOPIC_NAME,
            Cause.UNKNOWN_TOPIC,
            Cause.NOT_AUTHORIZED,
            Cause.UNAVAILABLE,
            Cause.CLOCK,
        )

    @property
    def can_pass(self) -> bool:
        """Whether it may pass without a correction of the record."""
        return self in (
            Cause.UNKNOWN_TOPIC,
            Cause.NOT_AUTHORIZED,
            Cause.UNAVAILABLE,
            Cause.CLOCK,
            Cause.PARTITION,
            Cause.UNTRIED,
            Cause.SPREAD,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cause why a record can't be published. `reason` names no record, so that many can share it."""

    cause: Cause
    reason: str
