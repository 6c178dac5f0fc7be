"""The configuration of a harvester: one validated model, read from YAML by the commands and from JSON by the child.

It is strict: an unknown key is an error that names it and the nearest known one. goharvest's YAML is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from airflow_outbox.errors import ConfigurationError, InvalidNameError
from airflow_outbox.harvest.goharvest import GoharvestFile, GoharvestHarvest
from airflow_outbox.harvest.kafka.oauth import FetchedTokens
from airflow_outbox.harvest.settings import (
    Duration,
    KafkaSettings,
    LogLevel,
    Settings,
    described,
    names,
    unknown_setting,
)
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.verdict import Thresholds

DeliveryMode = Literal["exactly_once", "at_least_once"]


class Limits(Settings):
    """Bounds and time-outs."""

    max_in_flight_records: int = Field(default=60_000, gt=0)
    """Records that are marked and not yet purged, at most; exactly once: that are read and not yet published."""
    max_in_flight_bytes: int = Field(default=32 * 1024 * 1024, gt=0)
    """About how many bytes such records take in memory, headers included; one record may exceed it."""
    mark_records: int = Field(default=5_000, gt=0)
    """Records that one statement marks, at most."""
    batch_records: int = Field(default=20_000, gt=0)
    """Records that one Kafka transaction holds, at most; more only where an atomic outbox needs it."""
    max_transaction_records: int = Field(default=1_000_000, gt=0)
    """Records of one source transaction that an atomic outbox publishes together, at most."""
    poll_interval: Duration = 0.002
    """How long a leader waits before it looks for more.

    After 25 ms in which nothing came it doubles, up to 0.1 s (or ten times this).
    """
    heartbeat_timeout: Duration = 2.0
    """A leader that reads no heartbeat of its own back for this long steps down."""
    session_timeout: Duration = 6.0
    """The group coordinator takes a member that is silent for this long for dead.

    At least the broker's group.min.session.timeout.ms.
    """
    statement_timeout: Duration = 30.0
    """A statement that Postgres has not answered for this long is given up, and with it the term."""
    take_over_timeout: Duration = 600.0
    """The same for the first window of a term, which may have to pass many dead rows; at least statement_timeout."""
    transactional_ids: int = Field(default=2, ge=1, le=16)
    """Kafka producers of a shard that take turns: while one commits a batch, the next one sends another.

    Each has some four threads and buffers of its own.
    """
    transaction_timeout: Duration = 60.0
    """Kafka gives up a transaction that is open for this long. At most the broker's transaction.max.timeout.ms."""
    delivery_timeout: Duration = 60.0
    """A record that Kafka has not taken for this long counts as undelivered, and is sent again.

    If a partition of its topic lacks brokers, the topic is set aside.
    """

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.heartbeat_timeout >= self.session_timeout:
            raise ValueError("heartbeat_timeout must be below session_timeout (a third of it is a good choice)")
        return self


class TransactionHeaders(Settings):
    """Names of headers that an atomic outbox adds to each record; none that is left out."""

    outbox_id: str | None = None
    """The outbox's id."""
    transaction_id: str | None = None
    """The source transaction's 64-bit id."""
    place: str | None = None
    """The record's place in its source transaction, from 1, over all topics."""
    total: str | None = None
    """How many records the source transaction has."""


class VerdictSettings(Settings):
    """When an outbox that is harvested is not all right."""

    lagging_after: Duration = 60.0
    """It is lagging when its oldest unpublished record has waited for longer."""
    stalled_after: Duration = 60.0
    """It is stalled when nothing was published for longer while a record waits as long."""


class HarvestConfig(Settings):
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
    delivery: DeliveryMode = "exactly_once"
    """The guarantee for consumers that read committed."""
    atomic: bool = False
    """Whether the records of a source transaction become visible together."""
    transaction_headers: TransactionHeaders = Field(default_factory=TransactionHeaders)
    """Headers by which consumers know the source transactions of an atomic outbox."""
    wait_for_standbys: bool = True
    """Whether a record is published only when the synchronous standbys of Postgres have it, too."""
    purge: Literal["delete", "archive"] = "delete"
    """Published records are deleted, or moved into `<outbox>_archive`."""
    archive_retention: Duration = 30 * 86400.0
    """How long the archive keeps them, by whole days."""
    ledger_topic: str | None = None
    """The topic of the ledger; by default `airflow-outbox.<outbox id>.ledger`."""
    transactional_id: str | None = None
    """The beginning of the producers' transactional ids; the shard and a number follow, each after a dot. By default
    `airflow-outbox.<outbox id>`."""
    shards: int = Field(default=1, gt=0)
    """How many shards have leaders of their own. Only shard 0 harvests so far, and it harvests the whole outbox."""
    log_level: LogLevel = "warning"
    """How much the process writes to stderr of what it and its clients do: off, error, warning, info or debug."""
    limits: Limits = Field(default_factory=Limits)
    verdict: VerdictSettings = Field(default_factory=VerdictSettings)

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

    @field_validator("kafka")
    @classmethod
    def _knows_its_tokens(cls, settings: KafkaSettings) -> KafkaSettings:
        source = settings.get("oauth_cb")
        if isinstance(source, str):
            try:
                return {**settings, "oauth_cb": FetchedTokens.named(source)}
            except ConfigurationError as error:
                raise ValueError(f"oauth_cb: {error}") from error
        return settings

    @model_validator(mode="after")
    def _atomic_is_exactly_once(self) -> Self:
        if self.atomic and self.delivery != "exactly_once":
            raise ValueError("atomic needs delivery: exactly_once")
        if self.atomic and self.shards > 1:
            raise ValueError("atomic needs shards: 1, because a source transaction may touch every shard")
        return self

    @property
    def archives(self) -> bool:
        """Whether what is purged goes into the archive."""
        return self.purge == "archive"

    @property
    def thresholds(self) -> Thresholds:
        """The bounds by which the outbox is judged."""
        return Thresholds(**self.verdict.model_dump(), silence=self.limits.session_timeout)

    @property
    def name(self) -> OutboxName:
        return OutboxName.parse(self.outbox_table)

    @classmethod
    def validated(cls, settings: object, *, source: str) -> Self:
        """A model of parsed settings, this project's or goharvest's.

        Raises ConfigurationError, which names the settings at fault and `source`.
        """
        if not isinstance(settings, Mapping):
            raise ConfigurationError(f"{source}: must be a mapping of settings, such as `outbox_table: outbox`")
        model: type[Settings] = cls
        try:
            if "harvest" in settings:
                model = GoharvestFile
                settings = cls._translated(settings, source=source)
                model = cls
            return cls.model_validate(settings)
        except ValidationError as error:
            # Without the cause, which would show the values, secrets among them.
            raise ConfigurationError(f"{source}: {described(error, model)}") from None

    @classmethod
    def _translated(cls, settings: Mapping[str, object], *, source: str) -> Mapping[str, object]:
        file = GoharvestFile.model_validate(settings)
        for name in file.own_settings:
            if name not in cls.model_fields:
                known = [*names(GoharvestHarvest), *cls.model_fields]
                raise ConfigurationError(f"{source}: {unknown_setting(name, within=['harvest'], known=known)}")
        return file.translated()

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
