"""The configuration of a harvester: one validated model, read from YAML by the commands and from JSON by the child.

It is strict: an unknown key is an error that names it and the nearest known one, or all if none is near. goharvest's
YAML is read too. The child reads neither YAML nor goharvest's settings, and does not load their modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from airflow_outbox.errors import ConfigurationError, InvalidNameError
from airflow_outbox.harvest.combinations import require_fitting
from airflow_outbox.harvest.kafka.oauth import FetchedTokens
from airflow_outbox.harvest.kafka.settings import under_one_name
from airflow_outbox.harvest.settings_base import (
    Duration,
    KafkaSettings,
    LogLevel,
    Settings,
    described,
    names,
    unknown_setting,
)
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.fence import PRIMARY
from airflow_outbox.values.outbox_list import OutboxPattern
from airflow_outbox.values.verdict import Thresholds

Processes = Annotated[int, Field(ge=1, le=64)]
DeliveryMode = Literal["exactly_once", "at_least_once"]
Requirement = Literal["all", "primary"]
_CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


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
    poll_interval: Duration = 0.001
    """How long a leader waits before it looks for more.

    After 25 ms in which nothing came it doubles, up to 0.1 s (or ten times this).
    """
    heartbeat_timeout: Duration = 2.0
    """A leader that reads no heartbeat of its own back for this long steps down."""
    session_timeout: Duration = 6.0
    """The group coordinator counts a member that is silent for this long as dead.

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
    awake_outboxes: int = Field(default=12, ge=1, le=500)
    """How many of many outboxes one process harvests at a time. Each has a connection and producers of its own."""
    rest_after: Duration = 60.0
    """One of many outboxes rests, without connection and producers, when it had no records for this long."""
    owed_retention: Duration = 7 * 86400.0
    """How long Postgres keeps what a detached cluster has missed. Beyond that, the cluster has to start from now."""
    owed_bytes: int = Field(default=10 * 1024 * 1024 * 1024, gt=0)
    """How much of it Postgres keeps."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.heartbeat_timeout >= self.session_timeout:
            raise ValueError("heartbeat_timeout must be below session_timeout (a third of it is a good choice)")
        return self


class TransactionHeaders(Settings):
    """Names of headers that an atomic outbox adds to each record. A header without a name is not added."""

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


class TracingSettings(Settings):
    """Spans of the harvest, by OpenTelemetry."""

    enabled: bool = False
    """Whether the process makes spans: of batches, take-overs and parking."""


class PositionsSettings(Settings):
    """Consumer groups that move between clusters."""

    enabled: bool = False
    """Whether each cluster gets the extents of the batches that are published to it."""
    extents_topic: str | None = None
    """The topic of the extents; by default `airflow-outbox.<outbox id>.extents`."""
    groups: list[str] = Field(default_factory=list)
    """Which groups' positions are replicated: patterns such as `orders-*`. One that begins with `!` takes groups out.
    Leave out groups whose consumers use `assign()`.
    """
    interval: Duration = 0.5
    """How long to wait between two looks at the groups; longer, if a look takes longer."""


class HarvestConfig(Settings):
    """All settings of a harvester."""

    data_source: str = Field(repr=False)
    """How to reach Postgres: a libpq connection string or URI."""
    outbox_table: str = "outbox"
    """The outbox, as `table` or `schema.table`."""
    outboxes: list[str] = Field(default_factory=list)
    """Instead of `outbox_table`, many outboxes of one database: names, and patterns such as `tenant_*.outbox`."""
    kafka: KafkaSettings = Field(repr=False)
    """librdkafka settings for every client; `bootstrap.servers` at least."""
    kafka_producer: KafkaSettings = Field(default_factory=dict, repr=False)
    """librdkafka settings for the producer only."""
    kafka_consumer: KafkaSettings = Field(default_factory=dict, repr=False)
    """librdkafka settings for the electing consumer only."""
    clusters: dict[str, KafkaSettings] = Field(default_factory=dict, repr=False)
    """Instead of `kafka`, several clusters that all get every record: librdkafka settings by a name for each. The one
    called `primary` elects.
    """
    require: Requirement = "all"
    """Which clusters must have a record before it counts as published: all, or only the primary and all others that are
    there.
    """
    detach_after: Duration = 30.0
    """With `require: primary`: a leader that can't reach a backup for this long lets another member lead, once; then it
    goes on without that backup.
    """
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
    shards: int = Field(default=1, gt=0, le=64)
    """How many leaders share the outbox that `init` makes. Later, the number that it has counts."""
    processes: Processes = 1
    """How many processes one sensor, trigger or `airflow-outbox harvest` starts and supervises.

    The shards are spread over all members, so more processes than shards only stand by.
    """
    log_level: LogLevel = "warning"
    """How much the process logs to stderr about itself and its clients: off, error, warning, info or debug."""
    limits: Limits = Field(default_factory=Limits)
    verdict: VerdictSettings = Field(default_factory=VerdictSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    positions: PositionsSettings = Field(default_factory=PositionsSettings)

    @field_validator("outbox_table")
    @classmethod
    def _is_a_name(cls, text: str) -> str:
        try:
            OutboxName.parse(text)
        except InvalidNameError as error:
            raise ValueError(str(error)) from error
        return text

    @field_validator("outboxes")
    @classmethod
    def _are_outboxes(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            OutboxPattern.parse(entry)
        return entries

    @field_validator("leader_topic", "ledger_topic")
    @classmethod
    def _is_a_topics_name(cls, text: str | None) -> str | None:
        if text is not None and not _TOPIC.fullmatch(text):
            raise ValueError(f"{text!r} can't be a topic's name: give 1 to 249 letters, digits, '.', '_' and '-'")
        return text

    @model_validator(mode="before")
    @classmethod
    def _with_a_primary(cls, settings: Any) -> Any:
        """Let `kafka` be the settings of the primary."""
        if not isinstance(settings, Mapping) or not isinstance(clusters := settings.get("clusters"), Mapping):
            return settings
        if not clusters:
            return settings
        if "kafka" in settings:
            raise ValueError("kafka and clusters exclude each other. Put the settings of kafka into clusters.primary")
        if PRIMARY not in clusters:
            raise ValueError(f"clusters.{PRIMARY} is missing: the cluster that elects has this name")
        return {**settings, "kafka": clusters[PRIMARY]}

    @field_validator("kafka")
    @classmethod
    def _reaches_kafka(cls, settings: KafkaSettings) -> KafkaSettings:
        return _checked(settings)

    @field_validator("kafka_producer", "kafka_consumer")
    @classmethod
    def _are_named_once(cls, settings: KafkaSettings) -> KafkaSettings:
        return under_one_name(settings)

    @field_validator("clusters", mode="before")
    @classmethod
    def _have_names(cls, clusters: object) -> object:
        if not isinstance(clusters, Mapping):
            raise ValueError("give each cluster's settings by its name, such as primary: {bootstrap.servers: …}")
        for name in clusters:
            if not isinstance(name, str) or not _CLUSTER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a cluster. Use small letters, digits, - and _")
        return clusters

    @field_validator("clusters")
    @classmethod
    def _reaches_clusters(cls, clusters: dict[str, KafkaSettings]) -> dict[str, KafkaSettings]:
        try:
            return {(at := name): _checked(settings) for name, settings in clusters.items()}
        except ValueError as error:
            raise ValueError(f"{at}: {error}") from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        require_fitting(self)
        return self

    def by_cluster(self) -> Mapping[str, Self]:
        """Return by name how to reach each cluster: the same configuration, with that cluster's settings in `kafka`.

        The primary is the first one.
        """
        others = {
            name: self.model_copy(update={"kafka": kafka}) for name, kafka in self.clusters.items() if name != PRIMARY
        }
        return {PRIMARY: self, **others}

    @property
    def archives(self) -> bool:
        """Whether what is purged goes into the archive."""
        return self.purge == "archive"

    @property
    def thresholds(self) -> Thresholds:
        """The bounds by which the outbox is judged."""
        return Thresholds(**self.verdict.model_dump(), silence=self.limits.session_timeout)

    def as_settings(self) -> dict[str, Any]:
        """Return the settings that were given, as JSON takes them, for another process; they hold secrets.

        Raises ConfigurationError for a function that no path names.
        """
        settings = self.model_dump(exclude_unset=True)
        if self.clusters:
            del settings["kafka"]
        groups = {group: settings.get(group, {}) for group in ("kafka", "kafka_producer", "kafka_consumer")}
        groups |= {f"clusters.{name}": kafka for name, kafka in settings.get("clusters", {}).items()}
        for group, given in groups.items():
            for name, value in given.items():
                if callable(value):
                    path = getattr(value, "path", None)
                    if path is None:
                        raise ConfigurationError(
                            f"{group}.{name} is a Python function, which can't be passed to another process. Name it "
                            "by its import path, or set processes: 1"
                        )
                    given[name] = path
        return settings

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
                from airflow_outbox.harvest.goharvest import GoharvestFile

                model = GoharvestFile
                settings = cls._translated(settings, source=source)
                model = cls
            return cls.model_validate(settings)
        except ValidationError as error:
            # Without the cause, which would show the values, secrets among them.
            raise ConfigurationError(f"{source}: {described(error, model)}") from None

    @classmethod
    def _translated(cls, settings: Mapping[str, object], *, source: str) -> Mapping[str, object]:
        from airflow_outbox.harvest.goharvest import GoharvestFile, GoharvestHarvest

        file = GoharvestFile.model_validate(settings)
        for name in file.own_settings:
            if name not in cls.model_fields:
                known = [*names(GoharvestHarvest), *cls.model_fields]
                raise ConfigurationError(f"{source}: {unknown_setting(name, within=['harvest'], known=known)}")
        if "clusters" in file.own_settings:
            raise ConfigurationError(
                f"{source}: harvest.clusters: a file of goharvest's has one cluster. Write the settings as this "
                "project's own"
            )
        return file.translated()

    @classmethod
    def from_yaml(cls, path: Path) -> Self:
        """Read a YAML file. Raises ConfigurationError."""
        from airflow_outbox.harvest.yaml_file import read_yaml

        return cls.validated(read_yaml(path), source=str(path))


def _checked(settings: KafkaSettings) -> KafkaSettings:
    """Return a cluster's settings, with the function that gets tokens. Raises ValueError."""
    settings = under_one_name(settings)
    if not settings.get("bootstrap.servers"):
        raise ValueError("bootstrap.servers is missing: give the brokers as host:port, separated by commas")
    source = settings.get("oauth_cb")
    if isinstance(source, str):
        try:
            return {**settings, "oauth_cb": FetchedTokens.named(source)}
        except ConfigurationError as error:
            raise ValueError(f"oauth_cb: {error}") from error
    return settings
