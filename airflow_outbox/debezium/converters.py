"""Connect's converters, which make bytes of keys, values and headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from airflow_outbox.debezium.finding import DebeziumFinding, refused


class RecordPart(Enum):
    """The parts of a record that have a converter each; a part's name is its setting's."""

    KEY = "key.converter"
    VALUE = "value.converter"
    HEADER = "header.converter"


class Form(Enum):
    """The forms that converters give values: text, JSON, or the bytes that they are."""

    TEXT = "text"
    JSON = "json"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Converter:
    """A converter. `has_schema`: JSON with the schema before it (`schemas.enable`). `has_numbers`: JSON has exact
    numbers as numbers, and not as bytes (`decimal.format`).
    """

    form: Form
    has_schema: bool = False
    has_numbers: bool = False


_SIMPLE = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
_FORMS = {
    "org.apache.kafka.connect.storage.StringConverter": Form.TEXT,
    _SIMPLE: Form.TEXT,
    "org.apache.kafka.connect.json.JsonConverter": Form.JSON,
    "org.apache.kafka.connect.converters.ByteArrayConverter": Form.BYTES,
    "io.debezium.converters.BinaryDataConverter": Form.BYTES,
    "io.debezium.converters.ByteArrayConverter": Form.BYTES,
    "io.debezium.converters.ByteBufferConverter": Form.BYTES,
}
_REGISTRY = "io.confluent.connect."
_CLOUD_EVENTS = "io.debezium.converters.CloudEventsConverter"


def translated_converter(part: RecordPart, settings: Mapping[str, str], findings: list[DebeziumFinding]) -> Converter:
    """Return the converter that the settings name; add a finding where there is none that can be translated."""
    name = settings.get(part.value, _SIMPLE if part is RecordPart.HEADER else "")
    form = _FORMS.get(name)
    if form is None or (part is RecordPart.HEADER and form is Form.BYTES):
        findings.append(refused(f"{part.value}: {_reason(part, name)}"))
        return Converter(Form.TEXT)
    if form is not Form.JSON:
        return Converter(form)
    has_schema = settings.get(f"{part.value}.schemas.enable", "true").lower() != "false"
    has_numbers = settings.get(f"{part.value}.decimal.format", "").lower() == "numeric"
    return Converter(form, has_schema, has_numbers)


def _reason(part: RecordPart, name: str) -> str:
    if not name:
        return (
            f"the connector names none, so that its worker's is in force. Give --worker with the worker's "
            f"configuration, or --set {part.value}=…"
        )
    if name.startswith(_REGISTRY) or "registry" in name.lower() or "Avro" in name:
        return (
            f"{name} asks a schema registry for each record, and a trigger can't. Serialise the payload where it is "
            "written, into a bytea column (see docs/how-to/schema-registry.md)"
        )
    if name == _CLOUD_EVENTS:
        return f"{name} is not translated. Make the event where it is written (see docs/how-to/cloud-events.md)"
    return f"{name} is not translated. Known are the String-, Json- and ByteArrayConverter"
