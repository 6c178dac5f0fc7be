"""Columns in the form that a schema registry's deserializers read, made by Spark itself, with no call a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal
from uuid import UUID

if TYPE_CHECKING:
    from pyspark.sql import Column


def with_schema_id(payload: Column, schema_id: int, *, message_indexes: Sequence[int] | None = None) -> Column:
    """Return a column of bytes with a schema's id before the payload: a zero and four bytes. Null stays null.

    `payload` is a column of bytes: from `to_avro`, `to_protobuf`, or `encode(to_json(…), 'UTF-8')`. `schema_id` is the
    registry's; ask for it once, where the job begins. Protobuf needs `message_indexes`, the message's place in its
    file: `[0]` is the first one, `[1, 0]` the first one in the second one. Raises OverflowError for an id that is
    negative or has more than four bytes.
    """
    from pyspark.sql import functions as F

    prefix = b"\x00" + schema_id.to_bytes(4, "big") + _places(message_indexes)
    return F.concat(F.lit(bytearray(prefix)), payload)


def schema_id_header(guid: str | UUID, *, of: Literal["value", "key"] = "value") -> Column:
    """Return an element for the column `headers` with a schema's global id, for values without an id before them.

    The column's values are bytes, so other headers in it must be, too. Raises ValueError for a text that is no UUID.
    """
    from pyspark.sql import functions as F

    content = bytearray(b"\x01" + UUID(str(guid)).bytes)
    return F.struct(F.lit(f"__{of}_schema_id").alias("key"), F.lit(content).alias("value"))


def _places(indexes: Sequence[int] | None) -> bytes:
    """A message's place in its file, as Confluent writes it: how many numbers, and these, in zigzag; or a zero."""
    if indexes is None:
        return b""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(_varint(2 * number) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)
