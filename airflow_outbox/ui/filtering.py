"""Which parked records somebody looks at, or acts on: in an address, and as the operators' requests have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, HTTPException, Query, status

from airflow_outbox.operate.parked_requests import BEHIND, REFUSED, Choice, ListingPlace
from airflow_outbox.ui.access import Asked, may_act, may_read
from airflow_outbox.values.refusals import Cause

LONGEST_KEY = 2_000
"""Bytes of a key that an address may hold."""
CAUSES: Mapping[str, str] = {
    REFUSED: "any: refused by Kafka",
    **{cause.value: cause.value.replace("_", " ") for cause in Cause},
    BEHIND: "none: waits behind another",
}
_LARGEST = 2**63 - 1
Number = Annotated[int | None, Query(ge=0, le=_LARGEST)]
TopicName = Annotated[str | None, Query(max_length=249)]


@dataclass(frozen=True, slots=True)
class Filter:
    """Records that match everything given; all of them where nothing is."""

    topic: str | None = None
    key: str | None = None
    cause: str | None = None
    number: int | None = None
    discarded: bool = False

    @property
    def is_empty(self) -> bool:
        return self.topic is None and self.key is None and self.cause is None and self.number is None

    def choice(self, *, up_to: int | None = None) -> Choice:
        return Choice(
            topic=self.topic,
            key=self.key,
            cause=self.cause,
            numbers=() if self.number is None else (self.number,),
            everything=self.is_empty,
            up_to=up_to,
        )

    def undeleted(self) -> Choice | None:
        """The records that Postgres won't delete, by the same topic and key. None where others are asked for.

        A page of all that was refused has them, too: the verdict's link leads there.
        """
        if self.discarded or self.number is not None or self.cause not in (None, REFUSED):
            return None
        return replace(self, cause=None).choice()

    def query(self, asked: Asked, **others: Any) -> str:
        """Return it as the query of an address, with others. None is left out."""
        given = {"outbox": str(asked.key), **asdict(replace(self, discarded=False)), **others}
        given["discarded"] = given["discarded"] or (True if self.discarded else None)
        return urlencode({name: value for name, value in given.items() if value is not None})


def filter_read(
    asked: Annotated[Asked, Depends(may_read)],
    topic: TopicName = None,
    key: Annotated[str | None, Query(max_length=LONGEST_KEY)] = None,
    cause: Annotated[str | None, Query(max_length=40)] = None,
    number: Number = None,
    discarded: bool = False,
) -> Filter:
    """Return the filter of an address. An empty field of a form counts as not given.

    Keys are values: 403 for somebody who may not see them, since trying would tell which keys there are.
    """
    if key and not asked.may_see_values:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not see keys, so you can't look for one.")
    if cause and cause not in CAUSES:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, f"There is no cause {cause}. Choose one of the list.")
    if "\0" in f"{topic}{key}":
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "No topic and no key has a zero byte. Remove it.")
    return Filter(topic or None, key or None, cause or None, number, discarded)


def filter_acted_on(
    asked: Annotated[Asked, Depends(may_act)], wanted: Annotated[Filter, Depends(filter_read)]
) -> Filter:
    """The same for somebody who may act. Only waiting records can be acted on."""
    return replace(wanted, discarded=False)


def choice_confirmed(
    wanted: Annotated[Filter, Depends(filter_acted_on)],
    up_to: Annotated[int, Query(ge=0, le=_LARGEST)],
    everything: bool = False,
) -> Choice:
    """The records that were counted when somebody was asked. All of them only where that is said."""
    if wanted.is_empty != everything:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "Say which records: some of them, or everything.")
    return wanted.choice(up_to=up_to)


def place_read(
    after_topic: TopicName = None,
    after_number: Number = None,
    after_cause: Annotated[str | None, Query(max_length=40)] = None,
) -> ListingPlace | None:
    """The place after which a page begins. None: at the beginning."""
    if after_topic is None or after_number is None or "\0" in f"{after_topic}{after_cause}":
        return None
    return ListingPlace(after_topic, after_number, after_cause)
