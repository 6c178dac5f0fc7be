"""Translate goharvest's YAML (`reaper.yaml`), read as it is, into this project's terms.

Its settings are under `harvest:`, in camel case, and this project's own may be beside them. A setting of goharvest's
without a counterpart here is validated and has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from airflow_outbox.harvest.settings_base import Duration, KafkaSettings, LogLevel, Settings

_LOG_LEVELS: Mapping[str, LogLevel] = {"warn": "warning", "trace": "debug"}
_HEARTBEATS_A_SESSION = 3


class GoharvestSettings(Settings):
    """A group of goharvest's settings."""

    model_config = ConfigDict(alias_generator=to_camel)


class GoharvestLimits(GoharvestSettings):
    """goharvest's bounds and time-outs."""

    heartbeat_timeout: Duration | None = None
    mark_backoff: Duration | None = None
    mark_query_records: int | None = Field(default=None, gt=0)
    max_in_flight_records: int | None = Field(default=None, gt=0)
    # Without a counterpart: here are no concurrent senders, and few waits go by the clock.
    io_error_backoff: Duration | None = Field(default=None, alias="ioErrorBackoff")
    poll_duration: Duration | None = None
    min_poll_interval: Duration | None = None
    max_poll_interval: Duration | None = None
    drain_interval: Duration | None = None
    queue_timeout: Duration | None = None
    send_concurrency: int | None = None
    send_buffer: int | None = None
    min_metrics_interval: Duration | None = None

    def translated(self) -> dict[str, Any]:
        """This project's limits."""
        timeout = self.heartbeat_timeout
        limits = {
            "heartbeat_timeout": timeout,
            "session_timeout": timeout and timeout * _HEARTBEATS_A_SESSION,
            "poll_interval": self.mark_backoff,
            "mark_records": self.mark_query_records,
            "max_in_flight_records": self.max_in_flight_records,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}


class GoharvestHarvest(GoharvestSettings):
    """The group `harvest`, with goharvest's defaults."""

    model_config = ConfigDict(extra="allow")  # this project's own settings

    base_kafka_config: KafkaSettings = Field(default_factory=dict)
    producer_kafka_config: KafkaSettings = Field(default_factory=dict)
    leader_topic: str | None = None
    leader_group_id: str | None = Field(default=None, alias="leaderGroupID")
    data_source: str = "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
    outbox_table: str = "outbox"
    limits: GoharvestLimits = Field(default_factory=GoharvestLimits)
    name: str | None = None


class GoharvestLogging(GoharvestSettings):
    """The group `logging`."""

    level: Annotated[
        Literal["off", "error", "warn", "info", "debug", "trace"], BeforeValidator(lambda level: str(level).lower())
    ] = "info"


class GoharvestFile(GoharvestSettings):
    """A whole file."""

    harvest: GoharvestHarvest = Field(default_factory=GoharvestHarvest)
    logging: GoharvestLogging = Field(default_factory=GoharvestLogging)

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings under `harvest` that are not goharvest's."""
        return self.harvest.model_extra or {}

    def translated(self) -> dict[str, Any]:
        """The settings in this project's terms. Its own settings win."""
        harvest, level = self.harvest, self.logging.level
        return {
            "data_source": harvest.data_source,
            "outbox_table": harvest.outbox_table,
            "kafka": {"bootstrap.servers": "localhost:9092", **harvest.base_kafka_config},
            # librdkafka's own choice, which goharvest leaves in force: with another, a key would change its partition.
            "kafka_producer": {"partitioner": "consistent_random", **harvest.producer_kafka_config},
            "leader_topic": harvest.leader_topic,
            "leader_group_id": harvest.leader_group_id,
            "delivery": "at_least_once",
            "log_level": _LOG_LEVELS.get(level, level),
            "limits": harvest.limits.translated(),
            **self.own_settings,
        }
