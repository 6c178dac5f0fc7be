"""One outbox of a list, chosen by its name: by the process that wakes it, or by an operator's `--outbox`."""

from __future__ import annotations

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.outbox_list import OutboxPattern


def of_outbox(config: HarvestConfig, outbox: str) -> HarvestConfig:
    """Return the configuration of one outbox. Raises ConfigurationError for one that the list does not mean."""
    name = OutboxName.parse(outbox)
    schema = name.schema or ""
    patterns = [OutboxPattern.parse(entry) for entry in config.outboxes]
    if patterns and not any(pattern.matches(schema, name.table, path=(schema,)) for pattern in patterns):
        raise ConfigurationError(f"{outbox} is not among the outboxes {', '.join(config.outboxes)}. Name one of them")
    settings = {**config.model_dump(exclude_unset=True, exclude={"outboxes"}), "outbox_table": outbox}
    return HarvestConfig.validated(settings, source="outbox")
