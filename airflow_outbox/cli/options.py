"""Options and errors that the commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import click
import psycopg

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.config_option import clear, configuration, configuration_of_many
from airflow_outbox.operate.status import read_shards
from airflow_outbox.postgres.connection import connect

__all__ = [
    "clear",
    "clear_errors",
    "configuration",
    "configuration_of_many",
    "database",
    "on_behalf_of",
    "say_if_nobody_leads",
]

on_behalf_of = click.option(
    "--on-behalf-of", metavar="NAME", help="For whom this is asked: the trail shows the name beside the role's."
)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Show an expected error as one line, and end with status 1."""
    try:
        yield
    except OutboxError as error:
        raise clear(error) from error


def say_if_nobody_leads(connection: psycopg.Connection[Any], config: HarvestConfig) -> None:
    """Say on stderr that a request waits for a leader. One that nobody ever led has no need of one."""
    shards = read_shards(connection, config.name)
    was_led = any(shard.silent_for is not None for shard in shards)
    if was_led and not any(shard.leads(config.limits.session_timeout) for shard in shards):
        click.echo("nobody leads now, so this waits until a harvester starts", err=True)


@contextmanager
def database(config: HarvestConfig) -> Iterator[psycopg.Connection[Any]]:
    with closing(connect(config.data_source, purpose="command")) as connection:
        yield connection
