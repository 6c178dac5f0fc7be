"""The commands as Airflow wants them: those of `airflow-outbox`, with the same names, options and arguments.

Airflow asks for them whenever somebody types `airflow …`. They are made only where that is about them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

if TYPE_CHECKING:
    from argparse import Namespace

    import click

NAME = "outbox"
CONFIGURATION = "config"
"""The parameter of each command that holds the configuration: here it is made of connections."""
CHOSEN = "chosen_outbox"
"""The parameter that says which outbox of a file is meant: here that is the connections' `--outbox`."""
CONNECTIONS = (
    Arg(("--postgres-conn-id",), default="postgres_default", help="The Airflow connection of the outbox's database."),
    Arg(("--kafka-conn-id",), default="kafka_default", help="The Airflow connection of its brokers."),
    Arg(
        ("--cluster",),
        dest="kafka_conn_ids",
        action="append",
        metavar="NAME=CONN_ID",
        help="Where there are several clusters: a name, and the Airflow connection of its brokers. Once for each.",
    ),
    Arg(("--outbox",), default="outbox", help="Its table, as `table` or `schema.table`."),
    Arg(
        ("--settings",),
        default="{}",
        metavar="JSON",
        help='More of the configuration, as the sensor takes it, such as {"purge": "archive"}.',
    ),
)


def get_cli_commands() -> list[GroupCommand]:
    """Return the group `outbox`, which is empty where nobody asks for one of its commands."""
    return [
        GroupCommand(
            name=NAME,
            help="Make, examine and operate transactional outboxes",
            subcommands=tuple(_all()) if _are_wanted() else (),
        )
    ]


def _are_wanted() -> bool:
    return sys.argv[1:2] in ([NAME], ["cheat-sheet"]) or "_ARGCOMPLETE" in os.environ


def _all() -> Iterator[ActionCommand | GroupCommand]:
    from airflow_outbox.cli import main  # here, because it loads the clients of Postgres and Kafka

    yield from _made(main.commands.values(), ())


def _made(commands: Iterable[click.Command], path: tuple[str, ...]) -> Iterator[ActionCommand | GroupCommand]:
    import click

    for command in commands:
        name = str(command.name)
        text = _shown(command.help or "")
        if isinstance(command, click.Group):
            below = tuple(_made(command.commands.values(), (*path, name)))
            yield GroupCommand(name=name, help=text, subcommands=below)
            continue
        context = click.Context(command, info_name=name)
        own = [_argument(each, context) for each in command.params if each.name not in (CONFIGURATION, CHOSEN)]
        run = partial(_run, command, ("airflow", NAME, *path, name))
        yield ActionCommand(name=name, help=text, func=run, args=(*CONNECTIONS, *own))


def _argument(parameter: click.Parameter, context: click.Context) -> Arg:
    """An option or an argument for Airflow's parser, which only takes it down: click examines it later."""
    import click

    name, metavar = str(parameter.name), parameter.make_metavar(context)
    if not isinstance(parameter, click.Option):
        return Arg((name,), nargs=None if parameter.required else "?", metavar=metavar.strip("[]"))
    record = parameter.get_help_record(context)
    # In square brackets, Airflow's parser would take words for markup.
    text = _shown(record[1] if record else "").replace("[", "(").replace("]", ")")
    flags = tuple(parameter.opts)
    if parameter.is_flag:
        return Arg(flags, dest=name, action="store_true", help=text)
    action = "append" if parameter.multiple else "store"
    return Arg(flags, dest=name, action=action, metavar=metavar, required=parameter.required, help=text)


def _shown(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def _run(command: click.Command, path: tuple[str, ...], given: Namespace) -> None:
    from airflow_outbox.airflow_cli.run import run
    from airflow_outbox.harvest.leaving import leave_after

    leave_after(partial(run, command, path, vars(given)))
