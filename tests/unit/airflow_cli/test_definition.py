"""`airflow outbox …` has all that `airflow-outbox` has, and costs other commands of Airflow nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click
import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_outbox.airflow_cli import definition
from airflow_outbox.airflow_cli.run import as_typed
from airflow_outbox.cli import main
from airflow_outbox.provider_info import get_provider_info

OWN = {flag for argument in definition.CONNECTIONS for flag in argument.flags}


@pytest.fixture
def airflows(monkeypatch: pytest.MonkeyPatch) -> Iterable[ActionCommand | GroupCommand]:
    monkeypatch.setattr(sys, "argv", ["airflow", "outbox", "status"])
    [group] = definition.get_cli_commands()
    return group.subcommands


def ours(commands: Iterable[click.Command], *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    for command in commands:
        below = (*path, str(command.name))
        if isinstance(command, click.Group):
            yield from ours(command.commands.values(), *below)
        else:
            taken = [name for each in command.params for name in each.opts if each.name != "config"]
            yield below, set(taken)


def theirs(commands: Iterable[Any], *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    for command in commands:
        below = (*path, command.name)
        if isinstance(command, GroupCommand):
            yield from theirs(command.subcommands, *below)
        else:
            yield below, {flag for argument in command.args for flag in argument.flags}


def test_both_have_the_same_commands_and_options(airflows: Iterable[Any]) -> None:
    expected = {path: options | OWN for path, options in ours(main.commands.values())}
    assert len(expected) > 15
    assert dict(theirs(airflows)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "reshard 4 --wait=5.0",
        "reshard --withdraw",
        "check --acls=table --topic=a --topic=-b",
        "parked retry --id=3 --id=4 --topic=100%",
        "adopt --reason=-x --yes",
    ],
)
def test_what_is_typed_reaches_the_command(airflows: Iterable[Any], line: str) -> None:
    words = line.split()
    command, depth = next(each for each in airflows if each.name == words[0]), 1
    own: click.Command = main.commands[words[0]]
    while isinstance(command, GroupCommand):
        command = next(each for each in command.subcommands if each.name == words[depth])
        assert isinstance(own, click.Group)
        own, depth = own.commands[words[depth]], depth + 1
    parser = argparse.ArgumentParser()
    for argument in command.args:
        argument.add_to_parser(parser)
    typed = list(as_typed(own, vars(parser.parse_args(words[depth:]))))
    assert sorted({*typed} - {"--"}) == sorted(words[depth:])
    assert typed.index("--") == len([word for word in words[depth:] if word.startswith("-")])


def test_airflow_2_and_releases_before_3_2_are_told_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_provider_info()["cli"] == ["airflow_outbox.airflow_cli.definition.get_cli_commands"]
    monkeypatch.setattr("airflow_outbox.version_compat._airflow_version", lambda: "3.1.8")
    assert "cli" not in get_provider_info()


def test_another_command_of_airflow_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["airflow", "dags", "list"])
    [group] = definition.get_cli_commands()
    assert group.subcommands == ()
