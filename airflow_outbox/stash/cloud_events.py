"""CloudEvents as records, as the Kafka protocol binding of CloudEvents 1.0 defines them."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from airflow_outbox.errors import InvalidCloudEventError
from airflow_outbox.values.records import OutboxRecord

SPECVERSION: Final = "1.0"
PREFIX: Final = "ce_"
CONTENT_TYPE: Final = "content-type"
STRUCTURED: Final = "application/cloudevents+json; charset=utf-8"
JSON: Final = "application/json"
REQUIRED: Final = ("id", "source", "type")
ATTRIBUTE = re.compile(r"[a-z0-9]+")

_IS_JSON = re.compile(r"[^;]*[/+]json\s*(?:;.*)?", re.IGNORECASE)
_OWN = frozenset({*REQUIRED, "specversion", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def cloud_event(
    topic: str,
    key: str | bytes,
    data: Any = None,
    *,
    source: str,
    type: str,
    id: str | None = None,
    subject: str | None = None,
    time: datetime | None = None,
    datacontenttype: str | None = None,
    dataschema: str | None = None,
    extensions: Mapping[str, str | int | bool] | None = None,
    structured: bool = False,
    partition: int | None = None,
) -> OutboxRecord:
    """Return a CloudEvent as a record to stash.

    In binary mode, the default, the record's value is `data` alone, and the attributes are headers (`ce_id`, …,
    `content-type`). With `structured`, all is one JSON text in the value. Text and bytes are passed on as they are, as
    `datacontenttype` says; any other `data` is written as JSON. None is no data: a tombstone in binary mode.

    `source` and `id` together name the event: an event that is sent again has the same ones. `id` None makes a random
    one. `time` has a time zone. The names of `extensions` are lower-case letters and digits.

    Raises InvalidCloudEventError.
    """
    attributes = _attributes(
        {
            "id": str(uuid4()) if id is None else id,
            "source": source,
            "type": type,
            "subject": subject,
            "time": _moment(time),
            "dataschema": dataschema,
        },
        extensions or {},
    )
    if data is not None and not isinstance(data, str | bytes):
        data, datacontenttype = _as_json(data), datacontenttype or JSON
    elif data is not None and datacontenttype is None:
        raise InvalidCloudEventError("datacontenttype", f"is missing. Say what the data is, such as {JSON!r}")
    if structured:
        value = _structured(attributes, data, datacontenttype)
        return OutboxRecord(topic, key, value, {CONTENT_TYPE: STRUCTURED}, partition)
    headers = {f"{PREFIX}{name}": _text(content) for name, content in attributes.items()}
    if datacontenttype is not None:
        headers[CONTENT_TYPE] = datacontenttype
    return OutboxRecord(topic, key, data, headers, partition)


def _attributes(own: Mapping[str, str | None], extensions: Mapping[str, Any]) -> dict[str, str | int | bool]:
    for name, content in extensions.items():
        if name in _OWN or not ATTRIBUTE.fullmatch(name):
            problem = "is not a name for an extension: give lower-case letters and digits, and no attribute's name"
            raise InvalidCloudEventError(name, problem)
        if not isinstance(content, str | int):
            raise InvalidCloudEventError(name, f"must be text, a whole number or a boolean, not {content!r}")
        if isinstance(content, int) and not -(2**31) <= content < 2**31:
            raise InvalidCloudEventError(name, "is a number of more than 32 bits. Give it as text")
    given = {"specversion": SPECVERSION, **{name: content for name, content in own.items() if content is not None}}
    for name, content in given.items():
        if not isinstance(content, str) or not content:
            raise InvalidCloudEventError(name, f"must be text that is not empty, not {content!r}")
    for name, content in {**given, **extensions}.items():
        if isinstance(content, str) and _CONTROL.search(content):
            raise InvalidCloudEventError(name, "has a control character. Remove it")
    return {**given, **extensions}


def _moment(time: datetime | None) -> str | None:
    if time is not None and time.utcoffset() is None:
        raise InvalidCloudEventError("time", "has no time zone. Give a datetime with one, such as datetime.now(UTC)")
    return None if time is None else time.isoformat().replace("+00:00", "Z")


def _text(content: str | int | bool) -> str:
    return str(content).lower() if isinstance(content, bool) else str(content)


def _as_json(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidCloudEventError("data", f"can't be written as JSON: {error}. Give text or bytes") from error


def _structured(
    attributes: Mapping[str, str | int | bool], data: str | bytes | None, datacontenttype: str | None
) -> str:
    """The event in JSON. Data that is JSON stands in it to the letter."""
    members: dict[str, Any] = dict(attributes)
    if datacontenttype is not None:
        members["datacontenttype"] = datacontenttype
    if data is not None and _IS_JSON.fullmatch(datacontenttype or ""):
        try:
            text = data.decode() if isinstance(data, bytes) else data
            json.loads(text)
        except ValueError as error:
            raise InvalidCloudEventError("data", f"is not JSON, as datacontenttype says: {error}") from error
        return f'{_as_json(members)[:-1]},"data":{text}}}'
    if isinstance(data, bytes):
        members["data_base64"] = b64encode(data).decode()
    elif data is not None:
        members["data"] = data
    return _as_json(members)
