"""The event router of a connector's configuration, as values.

`translated` reads a configuration. It has a finding for each thing that it can't translate, or that is different here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from airflow_outbox.debezium.converters import Converter, RecordPart, translated_converter
from airflow_outbox.debezium.finding import DebeziumFinding, differs, note, refused
from airflow_outbox.debezium.predicate import Predicate, PredicateError, translated_predicate
from airflow_outbox.debezium.topic_pattern import (
    DEFAULT_REGEX,
    DEFAULT_REPLACEMENT,
    PatternError,
    TopicPattern,
    translated_pattern,
)

ROUTER = "io.debezium.transforms.outbox.EventRouter"
_OWN_NAMES = ("topic.naming.strategy", "topic.delimiter")
"""Settings with which a table's topic, and its schema, have other names."""
_SERVERS = ("debezium.source.", "debezium.transforms")


class Placement(Enum):
    """Where an additional column goes."""

    HEADER = "header"
    ENVELOPE = "envelope"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class AdditionalField:
    """A column that is sent beside the payload, and its name there."""

    column: str
    placement: Placement
    alias: str


@dataclass(frozen=True, slots=True)
class Router:
    """The router's options and the converters: all that decides what a consumer sees of a row."""

    id_column: str
    key_column: str
    payload_column: str
    route_column: str
    topic: TopicPattern
    additional: Sequence[AdditionalField]
    ignores_missing: bool
    tombstones: bool
    expands_json: bool
    keeps_nulls: bool
    key: Converter
    value: Converter
    header: Converter
    binary_mode: str = "bytes"
    decimal_mode: str = "precise"
    time_mode: str = "adaptive"
    topic_prefix: str = ""
    predicate: Predicate | None = None

    @property
    def envelope(self) -> Sequence[AdditionalField]:
        """The columns in the value; with one of them, the value is an object, and the payload a member of it."""
        return [each for each in self.additional if each.placement is Placement.ENVELOPE]


@dataclass(slots=True)
class _Reading:
    """The options of one transform as they are read. Whatever is left in the end is not known."""

    settings: dict[str, str]
    findings: list[DebeziumFinding] = field(default_factory=list)

    def take(self, name: str, default: str = "") -> str:
        return self.settings.pop(name, default)

    def take_flag(self, name: str) -> bool:
        text = self.take(name, "false").lower()
        if text not in ("true", "false"):
            self.findings.append(refused(f"{name}: {text!r} is neither true nor false"))
        return text == "true"

    def take_choice(self, name: str, *choices: str) -> str:
        text = self.take(name, choices[0]).lower()
        if text not in choices:
            self.findings.append(refused(f"{name}: {text!r} is none of {', '.join(choices)}"))
        return text


def translated(settings: Mapping[str, str]) -> tuple[Router | None, list[DebeziumFinding]]:
    """Return the router of a connector's settings, and what has to be said of them.

    There is no router where the settings have none, or several. One may be there although a finding refuses it.
    """
    chain = [each.strip() for each in settings.get("transforms", "").split(",") if each.strip()]
    routers = [each for each in chain if settings.get(f"transforms.{each}.type") == ROUTER]
    if not chain and any(name.startswith(_SERVERS) for name in settings):
        return None, [
            refused(
                "these are the settings of a Debezium Server, which are not translated. If its sink is Kafka, give "
                "them as a connector's: without `debezium.source.` and `debezium.`, and its formats as converters"
            )
        ]
    if len(routers) != 1:
        has = f"{len(routers)} transforms" if routers else "no transform"
        return None, [refused(f"the connector has {has} of the type {ROUTER}. Name a connector with one")]
    findings = [
        refused(
            f"the transform {each} ({settings.get(f'transforms.{each}.type', 'without a type')}) is not translated. "
            "Do in the table, or in a column that Postgres generates, what it does, and leave it out"
        )
        for each in chain
        if each != routers[0]
    ]
    prefix = f"transforms.{routers[0]}."
    own = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    reading = _Reading(own, findings)
    return _router(reading, settings), findings


def _router(reading: _Reading, settings: Mapping[str, str]) -> Router:
    reading.take("type")
    findings = reading.findings
    topic_prefix = _topic_prefix(settings)
    router = Router(
        id_column=reading.take("table.field.event.id", "id"),
        key_column=reading.take("table.field.event.key", "aggregateid"),
        payload_column=reading.take("table.field.event.payload", "payload"),
        route_column=reading.take("route.by.field", "aggregatetype"),
        topic=_topic(reading),
        additional=list(_additional(reading)),
        ignores_missing=_ignores_missing(reading),
        tombstones=reading.take_flag("route.tombstone.on.empty.payload"),
        expands_json=reading.take_flag("table.expand.json.payload"),
        keeps_nulls=reading.take_choice("table.json.payload.null.behavior", "ignore", "optional_bytes")
        == "optional_bytes",
        key=translated_converter(RecordPart.KEY, settings, findings),
        value=translated_converter(RecordPart.VALUE, settings, findings),
        header=translated_converter(RecordPart.HEADER, settings, findings),
        binary_mode=settings.get("binary.handling.mode", "bytes").lower(),
        decimal_mode=settings.get("decimal.handling.mode", "precise").lower(),
        time_mode=settings.get("time.precision.mode", "adaptive").lower(),
        topic_prefix=topic_prefix,
        predicate=_predicate(reading, settings, topic_prefix),
    )
    _say_what_has_no_effect(reading, router)
    return router


def _topic_prefix(settings: Mapping[str, str]) -> str:
    """The beginning of the names of a table's topic and schema; nothing where they are made in another way."""
    if any(name in settings for name in _OWN_NAMES):
        return ""
    return settings.get("topic.prefix", settings.get("database.server.name", ""))


def _predicate(reading: _Reading, settings: Mapping[str, str], topic_prefix: str) -> Predicate | None:
    name, is_negated = reading.take("predicate"), reading.take_flag("negate")
    if not name:
        return None
    try:
        return translated_predicate(settings, name, topic_prefix=topic_prefix, is_negated=is_negated)
    except PredicateError as error:
        reading.findings.append(
            refused(
                f"the router has the predicate {name}, so that some rows may not pass it: {error}. Write such rows to "
                "another table, and leave the predicate out"
            )
        )
        return None


def _topic(reading: _Reading) -> TopicPattern:
    regex = reading.take("route.topic.regex", DEFAULT_REGEX)
    replacement = reading.take("route.topic.replacement", DEFAULT_REPLACEMENT)
    try:
        return translated_pattern(regex, replacement)
    except PatternError as error:
        reading.findings.append(
            refused(
                f"route.topic.regex: {error}. Let Postgres generate a column with the topic's name, and give "
                'route.by.field=<that column> and route.topic.replacement="${routedByValue}"'
            )
        )
        return TopicPattern([None])


def _additional(reading: _Reading) -> Iterator[AdditionalField]:
    for text in filter(None, map(str.strip, reading.take("table.fields.additional.placement").split(","))):
        parts = [part.strip() for part in text.split(":")]
        placements = {each.value: each for each in Placement}
        if len(parts) not in (2, 3) or parts[1].lower() not in placements:
            reading.findings.append(
                refused(
                    f"table.fields.additional.placement: {text!r}. Give column:header, column:envelope or "
                    "column:partition, with :alias behind it where it has another name"
                )
            )
            continue
        yield AdditionalField(parts[0], placements[parts[1].lower()], parts[-1] if len(parts) == 3 else parts[0])


def _ignores_missing(reading: _Reading) -> bool:
    old = reading.take("table.fields.additional.error.on.missing", "true").lower() == "false"
    return reading.take_choice("table.field.additional.missing", "error", "ignore") == "ignore" or old


def _say_what_has_no_effect(reading: _Reading, router: Router) -> None:
    findings = reading.findings
    if reading.take("table.op.invalid.behavior", "warn").lower() != "warn":
        findings.append(
            note("table.op.invalid.behavior: an update of a row is not published, and nobody is told of it here")
        )
    if column := reading.take("table.field.event.timestamp"):
        findings.append(
            differs(
                f"table.field.event.timestamp: records have the time at which they are published, and not that of "
                f"column {column}. Stream processors, and the retention of topics, go by it. Give "
                f"table.fields.additional.placement={column}:header for consumers who need the column",
            )
        )
    if reading.take("table.field.event.schema.version"):
        if router.envelope and router.value.has_schema:
            findings.append(
                refused(
                    "table.field.event.schema.version: the schema of columns in the envelope has no version here. "
                    "Leave it out, or turn value.converter.schemas.enable off"
                )
            )
        else:
            findings.append(note("table.field.event.schema.version: no schema that is sent has it"))
    if reading.take("table.json.payload.empty.array.behavior", "ignore") != "ignore":
        findings.append(refused("table.json.payload.empty.array.behavior: empty lists are left out. Give ignore"))
    reading.take("table.field.event.type")  # which the router does not read
    for name in sorted(reading.settings):
        if name.startswith("tracing."):
            findings.append(note(f"{name}: the router's spans are not made. See docs/how-to/traces.md"))
        else:
            findings.append(note(f"the router of Debezium 3.7 has no option {name}, and ignores it"))
