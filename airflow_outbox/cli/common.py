"""What the commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg
import yaml

from airflow_outbox.connection import connect
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig

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
    """Show an error that a user can meet as one line, and end with status 1."""
    try:
        yield
    except OutboxError as error:
        raise click.ClickException("\n".join(map(escaped, str(error).split("\n")))) from error


@contextmanager
def database(config: HarvestConfig) -> Iterator[psycopg.Connection[Any]]:
    with closing(connect(config.data_source, purpose="command")) as connection:
        yield connection


def escaped(text: str) -> str:
    """A text that a terminal only shows: whatever else it might do to one, such as control characters, as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def as_json(value: object) -> str:
    """JSON for programs, and for terminals, too."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


def as_yaml(value: object) -> str:
    """YAML for people, in ASCII where anything in it is more than a terminal may be shown."""
    plain = json.loads(json.dumps(value, default=str))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text if text.replace("\n", "").isprintable() else yaml.safe_dump(plain, sort_keys=False)
