"""The configuration of a harvester: one validated model, read from YAML by the commands and from JSON by the child
process.

It is strict: an unknown key is an error that names it and the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from airflow_outbox.errors import ConfigurationError, InvalidNameError
from airflow_outbox.names import OutboxName

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("give a duration such as 100ms, 2s or 5m, or a number of seconds")
        return float(match[1]) * _SECONDS[match[2]]
    return value


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""Seconds; written as a number, or as text such as `100ms`, `2s`, `5m`."""

KafkaSettings = dict[str, str | int | float | bool]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Limits(_Strict):
    """Bounds and time-outs."""

    max_in_flight_records: int = Field(default=20_000, gt=0)
    """Records that are marked and not yet purged, at most."""
    max_in_flight_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """Bytes of key and value that are marked and not yet purged; one record may exceed it."""
    mark_records: int = Field(default=5_000, gt=0)
    """Records that one statement marks, at most."""
    poll_interval: Duration = 0.01
    """How long an idle leader waits before it looks again; it doubles up to ten times this while nothing comes."""
    heartbeat_timeout: Duration = 2.0
    """A leader that reads no heartbeat of its own back for this long steps down."""
    session_timeout: Duration = 6.0
    """The group coordinator takes a member that is silent for this long for dead.

    At least the broker's group.min.session.timeout.ms.
    """
    delivery_timeout: Duration = 60.0
    """A record that Kafka has not taken for this long counts as undelivered; it is then marked and sent anew."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.heartbeat_timeout >= self.session_timeout:
            raise ValueError("heartbeat_timeout must be below session_timeout (a third of it is a good choice)")
        return self


class HarvestConfig(_Strict):
    """All that a harvester is told."""

    data_source: str = Field(repr=False)
    """How to reach Postgres: a libpq connection string or URI."""
    outbox_table: str = "outbox"
    """The outbox, as `table` or `schema.table`."""
    kafka: KafkaSettings = Field(repr=False)
    """librdkafka settings for every client; `bootstrap.servers` at least."""
    kafka_producer: KafkaSettings = Field(default_factory=dict, repr=False)
    """librdkafka settings for the producer only."""
    kafka_consumer: KafkaSettings = Field(default_factory=dict, repr=False)
    """librdkafka settings for the electing consumer only."""
    leader_topic: str | None = None
    """The topic of the election; by default `airflow-outbox.<outbox id>.leader`."""
    leader_group_id: str | None = None
    """The consumer group of the election; by default `airflow-outbox.<outbox id>`."""
    delivery: Literal["at_least_once"] = "at_least_once"
    """What consumers may count on."""
    limits: Limits = Field(default_factory=Limits)

    @field_validator("outbox_table")
    @classmethod
    def _is_a_name(cls, text: str) -> str:
        try:
            OutboxName.parse(text)
        except InvalidNameError as error:
            raise ValueError(str(error)) from error
        return text

    @field_validator("kafka")
    @classmethod
    def _reaches_kafka(cls, settings: KafkaSettings) -> KafkaSettings:
        if not settings.get("bootstrap.servers"):
            raise ValueError("bootstrap.servers is missing: give the brokers as host:port, separated by commas")
        return settings

    @property
    def name(self) -> OutboxName:
        return OutboxName.parse(self.outbox_table)

    @classmethod
    def validated(cls, settings: object, *, source: str) -> Self:
        """A model of parsed settings. Raises ConfigurationError, which names the settings at fault and `source`."""
        if not isinstance(settings, Mapping):
            raise ConfigurationError(f"{source}: must be a mapping of settings, such as `outbox_table: outbox`")
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            problems = "; ".join(_problem(detail) for detail in error.errors(include_url=False, include_input=False))
            raise ConfigurationError(
                f"{source}: {problems}"
            ) from None  # the cause would show the values, secrets among them

    @classmethod
    def from_yaml(cls, path: Path) -> Self:
        """Read a YAML file. Raises ConfigurationError."""
        try:
            settings = yaml.safe_load(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigurationError(f"can't read {path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            where = getattr(error, "problem_mark", None)
            line = f", line {where.line + 1}" if where else ""
            raise ConfigurationError(
                f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}"
            ) from None
        return cls.validated(settings, source=str(path))


def _problem(detail: ErrorDetails) -> str:
    *parents, key = [str(part) for part in detail["loc"]] or ["(top)"]
    name = ".".join([*parents, key])
    if detail["type"] == "extra_forbidden":
        known = list((Limits if parents == ["limits"] else HarvestConfig).model_fields)
        nearest = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.0)
        return f"unknown setting {name}; the nearest known one is {'.'.join([*parents, *nearest])}"
    if detail["type"] == "missing":
        return f"{name} is missing"
    return f"{name}: {detail['msg'].removeprefix('Value error, ')}"
