"""Kafka's requests as they are on the wire: where one ends and the next begins, and what each asks for whom.

Only what faults choose by is read: the kind of a request, the client, and the transactional id. A request begins with
its size, its kind (the API key), the version of that kind and a number that its answer repeats (the correlation id).
From some version of each kind on, texts are 'compact' and the header ends with tagged fields: see `_FLEXIBLE_FROM`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")  # kind, version, correlation id, length of the client id
_SHORT = struct.Struct(">h")
_NOTHING = struct.Struct(">qqq")  # the first offset, the time, and where the partition begins
_NOT_ATTEMPTED = 55  # because of another partition
_ANSWER_HEADER = 4  # bytes: the correlation id


class Api(IntEnum):
    """Kinds of requests that transactions need."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    END = 26
    WRITE_MARKERS = 27


_FLEXIBLE_FROM = {Api.PRODUCE: 9, Api.INIT_PRODUCER_ID: 2, Api.ADD_PARTITIONS: 3, Api.END: 3, Api.WRITE_MARKERS: 1}
_BEFORE_BATCHES = 3  # from version 4 on brokers, and only they, ask AddPartitionsToTxn for several ids at once


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a proxy has seen; `at` is when, on the monotonic clock, `connection` on which of its connections.

    `commits` says of EndTxn whether it commits; it is None for others. `frame` is all of it, as it came.
    """

    api: int
    version: int
    correlation_id: int
    client_id: str
    transactional_id: str | None
    commits: bool | None
    connection: int
    at: float
    frame: bytes = field(default=b"", repr=False)


class Frames:
    """Takes bytes as they come, and gives back whole frames, each with its size."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        self._rest += data
        found, place = [], 0
        while len(self._rest) - place >= _SIZE.size:
            end = place + _SIZE.size + _SIZE.unpack_from(self._rest, place)[0]
            if end > len(self._rest):
                break
            found.append(self._rest[place:end])
            place = end
        self._rest = self._rest[place:]
        return found


def read_request(frame: bytes, *, connection: int, at: float) -> Request:
    api, version, correlation_id, length = _HEADER.unpack_from(frame, _SIZE.size)
    client = _SIZE.size + _HEADER.size
    client_id = frame[client : client + max(length, 0)].decode()
    transactional_id, body = _transactional_id(frame)
    commits = None if api != Api.END else frame[body + 10] != 0  # after the producer's id and epoch
    return Request(api, version, correlation_id, client_id, transactional_id, commits, connection, at, frame)


def _transactional_id(frame: bytes) -> tuple[str | None, int]:
    """The transactional id, if the request has one, and where the rest of the request begins."""
    api, version, _, length = _HEADER.unpack_from(frame, _SIZE.size)
    body = _SIZE.size + _HEADER.size + max(length, 0)
    if api not in _FLEXIBLE_FROM or api == Api.WRITE_MARKERS:
        return None, body
    is_flexible = version >= _FLEXIBLE_FROM[Api(api)]
    if is_flexible:
        body = _after_tags(frame, body)
    if api == Api.ADD_PARTITIONS and version > _BEFORE_BATCHES:
        return None, body
    return (_compact_text if is_flexible else _text)(frame, body)


def refusal_of(frame: bytes, code: int, topic: str) -> bytes:
    """The answer by which a broker refuses a request: Produce as a whole, AddPartitionsToTxn because of this topic."""
    api, version, correlation_id, _ = _HEADER.unpack_from(frame, _SIZE.size)
    _, place = _transactional_id(frame)
    assert (version >= _FLEXIBLE_FROM[Api(api)]) == (api == Api.PRODUCE)  # as librdkafka sends them
    refused = _produce_refused(frame, place, code) if api == Api.PRODUCE else _adding_refused(frame, place, code, topic)
    answer = _SIZE.pack(correlation_id) + refused
    return _SIZE.pack(len(answer)) + answer


def _produce_refused(frame: bytes, place: int, code: int) -> bytes:
    place += 6  # the wanted acknowledgements, and the time for them
    topics, place = _number(frame, place)
    after_topic = _compact_text(frame, place)[1]
    partitions, first = _number(frame, after_topic)
    assert topics == partitions == 2  # one each: a compact array says one more than it has
    offsets, no_errors, no_message, no_tags, not_throttled = _NOTHING.pack(-1, -1, -1), b"\1", b"\0", b"\0", bytes(4)
    refused = frame[first : first + 4] + _SHORT.pack(code) + offsets + no_errors + no_message + no_tags
    return no_tags + b"\2" + frame[place:after_topic] + b"\2" + refused + no_tags + not_throttled + no_tags


def _adding_refused(frame: bytes, place: int, code: int, topic: str) -> bytes:
    place += 10  # the producer's id and epoch
    (topics,) = _SIZE.unpack_from(frame, place)
    answer, place = bytes(4) + frame[place : place + 4], place + 4  # not throttled
    for _ in range(topics):
        name, after_topic = _text(frame, place)
        (partitions,) = _SIZE.unpack_from(frame, after_topic)
        answer, place = answer + frame[place : after_topic + 4], after_topic + 4
        for _ in range(partitions):
            answer += frame[place : place + 4] + _SHORT.pack(code if name == topic else _NOT_ATTEMPTED)
            place += 4
    return answer


def correlation_id_of(answer: bytes) -> int:
    return int(_SIZE.unpack_from(answer, _SIZE.size)[0])


def error_in(answer: bytes, request: Request) -> int:
    """The error's code in an answer to EndTxn or InitProducerId: 0 for none, and for all other requests."""
    if request.api not in (Api.END, Api.INIT_PRODUCER_ID):
        return 0
    place = _SIZE.size + _ANSWER_HEADER
    if request.version >= _FLEXIBLE_FROM[Api(request.api)]:
        place = _after_tags(answer, place)
    return int(_SHORT.unpack_from(answer, place + 4)[0])  # after the time by which the client is throttled


def _text(frame: bytes, place: int) -> tuple[str | None, int]:
    (length,) = _SHORT.unpack_from(frame, place)
    place += _SHORT.size
    return (None, place) if length < 0 else (frame[place : place + length].decode(), place + length)


def _compact_text(frame: bytes, place: int) -> tuple[str | None, int]:
    length, place = _number(frame, place)
    return (None, place) if length == 0 else (frame[place : place + length - 1].decode(), place + length - 1)


def _after_tags(frame: bytes, place: int) -> int:
    count, place = _number(frame, place)
    for _ in range(count):
        _, place = _number(frame, place)
        size, place = _number(frame, place)
        place += size
    return place


def _number(frame: bytes, place: int) -> tuple[int, int]:
    """An unsigned number of variable length: seven bits a byte, the lowest first."""
    value = shift = 0
    while True:
        byte = frame[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def of(requests: Sequence[Request], api: Api, transactional_id: str | None = None) -> list[Request]:
    """Those of a kind, and of a transactional id if one is given."""
    return [
        request for request in requests if request.api == api and transactional_id in (None, request.transactional_id)
    ]
