"""Which partition a record goes to, chosen as Kafka's clients choose it, and remembered by key.

Whoever knows the partition of each record needs to be told only of the first and the last record of each partition
where they went, and not of every single one, which costs as much as sending it.

Two of the client's partitioners are known here: `murmur2_random`, that of Java's clients, and `consistent_random`, that
of librdkafka. Both choose at random for an empty key, which is left to the client, as are all other partitioners.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

from airflow_outbox.pages import OutboxRow

_MOST_KEYS = 100_000
_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash of Java's default partitioner, made positive: Austin Appleby's MurmurHash2, as Kafka seeds it."""
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


class Partitioner:
    """Chooses the partitions of records; `name` is what the client calls the partitioner."""

    def __init__(self, name: str) -> None:
        self._hash = _HASHES.get(name)
        self._hashes: dict[str | bytes, int] = {}

    def choose(self, rows: Sequence[OutboxRow], partitions: Mapping[str, int]) -> list[int] | None:
        """The partition of each row, by how many a topic has; None when it takes longer to find them than to ask.

        That is so for unknown partitioners, empty keys, and where more than half of the rows have keys that are new.
        """
        if self._hash is None:
            return None
        unknown = {row[2] for row in rows} - self._hashes.keys()
        if 2 * len(unknown) > len(rows) or "" in unknown or b"" in unknown:
            return None
        if len(self._hashes) + len(unknown) > _MOST_KEYS:
            self._hashes.clear()
            unknown = {row[2] for row in rows}
        for key in unknown:
            self._hashes[key] = self._hash(key.encode() if isinstance(key, str) else key)
        hashes = self._hashes
        return [hashes[row[2]] % partitions[row[1]] if row[6] is None else row[6] for row in rows]
