"""The fingerprints of records: a number for the lane, a number for the content, and the place.

A *lane* is a topic and a key; within one, order counts. The *content* is the value and the headers, in their order.
Both numbers are hashes of 64 bits, and contents are compared only within a lane. The odds that any two of ten million
records are confused are less than 1 in 100,000.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

DUE, WAITING, EXPIRED = 0, 1, 2
"""Why a stashed record may be absent: no reason; it still waits in the outbox; Kafka may have removed it by now."""

NO_PIN = -1
_OFFSET_BITS = 44

Header = tuple[str | bytes, str | bytes | None]


class Stashed(NamedTuple):
    """A stashed row. `pin` is the partition that it asks for, or NO_PIN; `excuse` is DUE, WAITING or EXPIRED."""

    lane: int
    pin: int
    content: int
    id: int
    transaction_id: int | None
    excuse: int


class Arrived(NamedTuple):
    """A record in Kafka. `late` is 1 when it may have been stashed after the rows were read."""

    lane: int
    partition: int
    content: int
    place: int
    late: int


def lane_of(topic: str, key: str | bytes | None) -> int:
    """The number of a lane. A text key counts as its bytes in UTF-8; records without a key are a lane of their own."""
    name = topic.encode()
    return _hash(name if key is None else name + b"\0" + _bytes(key))


def content_of(value: str | bytes | None, headers: Iterable[Header] = ()) -> int:
    """The number of a content. A tombstone (no value) differs from an empty value."""
    parts = [b"\0" if value is None else b"\1" + _bytes(value)]
    for name, content in headers:
        parts += [_bytes(name), b"" if content is None else b"\1" + _bytes(content)]
    if len(parts) == 1:
        return _hash(parts[0])
    return _hash(b"".join(b"%d:%b" % (len(part), part) for part in parts))


def place_of(slot: int, offset: int) -> int:
    """A record's place as one number: the slot, which stands for a topic's partition, and the offset there."""
    return slot << _OFFSET_BITS | offset


def slot_and_offset(place: int) -> tuple[int, int]:
    return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)
