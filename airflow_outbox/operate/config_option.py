"""The option of every command that says which outbox is meant: a file, or a configuration that is there already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.many.choice import of_outbox
from airflow_outbox.values.terminal import escaped

Command = TypeVar("Command", bound=Callable[..., Any])

CHOSEN = "chosen_outbox"
"""The parameter that says which of many outboxes is meant."""
READ_AGAIN = "airflow_outbox.read_again"
"""In a command's `meta`: a function that returns the configuration as it is now, or raises click.ClickException."""
VARIABLE = "AIRFLOW_OUTBOX_FILE"
"""The environment variable that names the file where the option does not."""


class Configuration(click.ParamType):  # type: ignore[type-arg]  # older releases of click have none
    """A file's configuration; or one that a caller gives instead of a file, by the context's `default_map`."""

    name = "file"

    def __init__(self, *, takes_many: bool = False) -> None:
        """`takes_many`: the command is also about all outboxes of a list."""
        self._takes_many = takes_many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> HarvestConfig:
        """Read the file. Raises click.ClickException for one that can't be read."""
        if isinstance(value, HarvestConfig):
            if ctx is not None and param is not None:
                ctx.meta[READ_AGAIN] = partial(ctx.lookup_default, str(param.name))
            return value
        if ctx is not None:
            ctx.meta[READ_AGAIN] = partial(self.convert, value, None, ctx)
        try:
            config = HarvestConfig.from_yaml(Path(value))
            chosen = None if ctx is None else ctx.meta.get(CHOSEN)
            if chosen is not None:
                return of_outbox(config, chosen)
            if config.outboxes and not self._takes_many:
                raise ConfigurationError(
                    f"{value} has many outboxes: {', '.join(config.outboxes)}. Say by --outbox which one is meant"
                )
        except OutboxError as error:
            raise clear(error) from error
        return config

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete a file's name."""
        return [CompletionItem(incomplete, type="file")]


def _choose(context: click.Context, _: click.Parameter, outbox: str | None) -> None:
    context.meta[CHOSEN] = outbox


def configuration(command: Command) -> Command:
    """Give a command the option for its configuration, and the one that says which of many outboxes is meant."""
    return _with_options(command, Configuration())


def configuration_of_many(command: Command) -> Command:
    """Give a command the same options, where it is also about all outboxes of a list."""
    return _with_options(command, Configuration(takes_many=True))


def _with_options(command: Command, kind: Configuration) -> Command:
    file = click.option(
        "-f",
        "--file",
        "config",
        required=True,
        envvar=VARIABLE,
        show_envvar=True,
        type=kind,
        help="The configuration (YAML).",
    )
    choice = click.option(
        "--outbox",
        CHOSEN,
        is_eager=True,  # the file is read after that
        expose_value=False,
        callback=_choose,
        metavar="NAME",
        help="The outbox, if the file has several.",
    )
    return file(choice(command))


def clear(error: OutboxError) -> click.ClickException:
    """Return the error as commands show it."""
    return click.ClickException("\n".join(map(escaped, str(error).split("\n"))))
