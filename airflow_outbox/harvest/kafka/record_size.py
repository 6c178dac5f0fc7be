"""The size of a record: Kafka's client measures it uncompressed, a broker measures what arrives."""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_outbox.values.pages import HEADER_NAMES, HEADER_VALUES, KEY, VALUE, OutboxRow
from airflow_outbox.values.records import MarkedRecord

Row = OutboxRow | MarkedRecord

_CLIENTS_OVERHEAD = 36  # librdkafka's size of a record without headers, at most, beside its key and value
_BATCH_OVERHEAD = 61
_UNCOUNTED = 3  # attributes, and differences of time and offset, which are zero in a batch of one
_MARGIN = 0.9  # of xz's result: no codec of Kafka's leaves much less
_SMALLEST_WINDOW = 4096
_CLIENTS_LIMIT = 1_000_000
_SIZE = "message.max.bytes"
_CODECS = ("compression.type", "compression.codec")


def client_limit(producer: Mapping[str, Any]) -> int:
    """Return how large a record a producer with these settings takes."""
    return int(producer.get(_SIZE, _CLIENTS_LIMIT))


def compresses(producer: Mapping[str, Any]) -> bool:
    """Whether a producer with these settings compresses."""
    codecs = [codec for name, codec in producer.items() if name in _CODECS]
    return bool(codecs) and codecs[-1] != "none"


def size_for_client(row: Row) -> int:
    """Return the size that a producer compares with its own limit, before it compresses."""
    return _CLIENTS_OVERHEAD + _length(row[KEY]) + _length(row[VALUE]) + _headers(row)


def size_for_broker(row: Row) -> int:
    """Return the size that a broker compares with the topic's limit for a record alone and uncompressed."""
    body = (
        _UNCOUNTED
        + _prefixed(_length(row[KEY]))
        + _prefixed(_length(row[VALUE]))
        + _varint(len(row[HEADER_NAMES] or ()))
        + _headers(row)
    )
    return _BATCH_OVERHEAD + _prefixed(body)


def least_size_for_broker(row: Row) -> int:
    """Return a size below which no codec of Kafka's compresses the record, as far as can be told without them."""
    parts = [row[KEY], row[VALUE], *(row[HEADER_NAMES] or ()), *(row[HEADER_VALUES] or ())]
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts if part is not None)
    window = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": max(_SMALLEST_WINDOW, len(data))}
    return _BATCH_OVERHEAD + int(_MARGIN * len(lzma.compress(data, lzma.FORMAT_RAW, filters=[window])))


def _headers(row: Row) -> int:
    names: Sequence[str | bytes | None] | None = row[HEADER_NAMES]
    return (
        sum(_prefixed(_length(part)) for parts in (names, row[HEADER_VALUES] or ()) for part in parts) if names else 0
    )


def _length(part: str | bytes | None) -> int:
    if part is None:
        return 0
    return len(part) if isinstance(part, bytes) or part.isascii() else len(part.encode())


def _prefixed(length: int) -> int:
    return _varint(length) + length


def _varint(number: int) -> int:
    return max(1, ((2 * number).bit_length() + 6) // 7)
