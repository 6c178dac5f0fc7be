"""A record's slot, reckoned elsewhere than in Postgres."""

from __future__ import annotations

from hashlib import md5


def slot_of(topic: str, key: str | bytes | None) -> int:
    parts = [part if isinstance(part, bytes) else part.encode() for part in (topic, key) if part is not None]
    return md5("".join(md5(part).hexdigest() for part in parts).encode()).digest()[0] & 63


def key_of(shard: int, topic: str, *, shards: int = 4, number: int = 0) -> str:
    """A key by which a record of this topic belongs to the shard; each `number` has another."""
    keys = (f"k{each}" for each in range(10_000))
    return [key for key in keys if slot_of(topic, key) % shards == shard][number]
