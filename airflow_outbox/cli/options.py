"""Options and errors that the commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect
from airflow_outbox.values.terminal import escaped

config_file = click.option(
    "-f",
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="The configuration (YAML).",
)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Show an expected error as one line, and end with status 1."""
    try:
        yield
    except OutboxError as error:
        raise click.ClickException("\n".join(map(escaped, str(error).split("\n")))) from error


@contextmanager
def database(config: HarvestConfig) -> Iterator[psycopg.Connection[Any]]:
    with closing(connect(config.data_source, purpose="command")) as connection:
        yield connection
