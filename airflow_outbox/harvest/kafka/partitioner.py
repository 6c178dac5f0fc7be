"""Choose each record's partition as Kafka's clients do, and remember the choice by key.

When each record's partition is known, only the first and last record of a partition need to report where they went. A
report from every record costs as much as sending it.

Two of the clients' partitioners are known here: `murmur2_random`, of Java's clients, and `consistent_random`, of
librdkafka. Both choose at random for an empty key. That choice is left to the client, as are other partitioners.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from airflow_outbox.values.pages import OutboxRow

_MOST_KEYS = 100_000
_JUDGED_AT_ONCE = 40_000  # records
_LEFT_ALONE = 16 * _JUDGED_AT_ONCE
_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of Java's default partitioner, made positive: Austin Appleby's MurmurHash2, as Kafka seeds it."""
    length = len(key)
    value = _SEED ^ length
    words = length // 4
    for word in struct.unpack_from(f"<{words}I", key):
        word = word * _M & _WORD
        value = (value * _M & _WORD) ^ ((word ^ word >> 24) * _M & _WORD)
    rest = key[words * 4 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _WORD
    value = (value ^ value >> 13) * _M & _WORD
    return (value ^ value >> 15) & 0x7FFFFFFF


_HASHES: Mapping[str, Callable[[bytes], int]] = {"murmur2_random": murmur2, "consistent_random": zlib.crc32}
DEFAULT_PARTITIONER = "murmur2_random"
"""Java clients' choice, so that topics that share keys with theirs are partitioned alike."""
KNOWN_PARTITIONERS = frozenset(_HASHES)
_topic, _key, _named_partition = itemgetter(1), itemgetter(2), itemgetter(6)


class _EmptyKeyError(Exception):
    """The partition of a record without a key can't be told."""


class _Hashes(dict[str | bytes | None, int]):
    """The hashes of keys, computed when first asked for."""

    def __init__(self, of: Callable[[bytes], int]) -> None:
        self._of = of

    def __missing__(self, key: str | bytes | None) -> int:
        if not key:
            raise _EmptyKeyError
        found = self[key] = self._of(key.encode() if isinstance(key, str) else key)
        return found


class Partitioner:
    """Chooses the partitions of records. `name` is the client's name for the partitioner."""

    def __init__(self, name: str) -> None:
        known = _HASHES.get(name)
        self._hashes = None if known is None else _Hashes(known)
        self._chosen = self._were_new = 0  # records, and new keys among them, since the last judgement
        self._to_leave_alone = 0

    def choose(self, rows: Sequence[OutboxRow], partitions: Mapping[str, int]) -> list[int] | None:
        """Return the partition of each row, given how many each topic has; None leaves it to the client.

        The client chooses for unknown partitioners and empty keys, and for a while when most keys were new. To find the
        partitions of keys that don't come again takes as long as to ask for them.
        """
        if self._hashes is None:
            return None
        named = list(map(_named_partition, rows))
        if None not in named:
            return named
        if self._to_leave_alone > 0:
            self._to_leave_alone -= len(rows)
            return None
        if len(self._hashes) > _MOST_KEYS:
            self._hashes.clear()
        known_before = len(self._hashes)
        try:
            hashes = list(map(self._hashes.__getitem__, map(_key, rows)))
        except _EmptyKeyError:
            return None
        self._chosen += len(rows)
        self._were_new += len(self._hashes) - known_before
        if self._chosen >= _JUDGED_AT_ONCE:
            self._to_leave_alone = _LEFT_ALONE if 2 * self._were_new > self._chosen else 0
            self._chosen = self._were_new = 0
        if len(partitions) == 1 and set(named) == {None}:
            (count,) = partitions.values()
            return [value % count for value in hashes]
        counts = map(partitions.__getitem__, map(_topic, rows))
        return [
            value % count if given is None else given for value, count, given in zip(hashes, counts, named, strict=True)
        ]


class Placing:
    """Chooses records' partitions, the same for all clusters. `name` is the client's name for the partitioner."""

    def __init__(self, name: str) -> None:
        known = _HASHES.get(name)
        self._hashes = None if known is None else _Hashes(known)

    def choose(self, rows: Sequence[OutboxRow], partitions: Mapping[str, int]) -> list[int] | None:
        """Return the partition of each row, given how many each topic has.

        A record with an empty key, for which the client would choose at random, goes by its id: so it goes into the
        same partition each time. Other partitioners than those known here choose later (None).
        """
        hashes = self._hashes
        if hashes is None:
            return None
        if len(hashes) > _MOST_KEYS:
            hashes.clear()
        if len(partitions) == 1 and all(map(_key, rows)) and set(map(_named_partition, rows)) <= {None}:
            (count,) = partitions.values()
            return [value % count for value in map(hashes.__getitem__, map(_key, rows))]
        return [
            (hashes[key] if key else number) % partitions[topic] if partition is None else partition
            for number, topic, key, _, _, _, partition, _, _ in rows
        ]
