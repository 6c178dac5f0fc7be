"""What all commands have in common: help, completion, and answers for programs."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from airflow_outbox.cli import main

LASTING = {("harvest",), ("positions", "run")}
"""Commands that don't answer: they emit events."""


def commands(group: click.Group = main, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield (*path, name), command
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


@pytest.mark.parametrize("path", [(), ("parked",), ("clusters",), ("positions",), ("debezium",)])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_is_not_cut_off(path: tuple[str, ...], columns: int) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=columns)
    assert result.exit_code == 0
    assert "..." not in result.output.replace("[ARGS]...", "")
    text = " ".join(result.output.split())
    for below, command in commands():
        if below[:-1] == path:
            paragraph = " ".join((command.help or "").split("\n\n")[0].split())
            first = paragraph.split(". ")[0].rstrip(".")
            assert first in text, below
    assert max(map(len, result.output.splitlines())) <= max(columns, 50)


def test_every_command_that_answers_has_json() -> None:
    for path, command in commands():
        if isinstance(command, click.Group) or path in LASTING:
            continue
        [output] = [each for each in command.params if each.name == "output"]
        assert isinstance(output.type, click.Choice), path
        assert "json" in output.type.choices, path


def test_a_number_that_nothing_can_hold_is_refused_by_every_option() -> None:
    refused, taken = 0, []
    for path, command in commands():
        for option in command.params:
            is_whole = isinstance(option.type, click.types.IntParamType)
            is_other = isinstance(option.type, click.types.FloatParamType)
            for text in ["9" * 30] * is_whole + ["nan", "inf"] * is_other:
                try:
                    option.type.convert(text, option, click.Context(command))
                    taken.append((*path, option.name, text))
                except click.BadParameter:
                    refused += 1
    assert taken == []
    assert refused > 20


def completed(*words: str) -> set[str]:
    *before, last = words
    return {item.value for item in BashComplete(main, {}, "airflow-outbox", "_X").get_completions(before, last)}


def test_the_shell_completes_commands_options_and_values() -> None:
    assert completed("par") == {"parked"}
    assert completed("parked", "re") == {"retry"}
    assert completed("status", "--fail-u") == {"--fail-unless-leading"}
    assert completed("check", "--acls", "k") == {"kafka-acls"}
    [file] = BashComplete(main, {}, "airflow-outbox", "_X").get_completions(["status", "-f"], "outb")
    assert file.type == "file"


def test_the_script_for_a_shell_is_printed() -> None:
    for shell in ("bash", "zsh", "fish"):
        environment = {"_AIRFLOW_OUTBOX_COMPLETE": f"{shell}_source"}
        result = CliRunner().invoke(main, prog_name="airflow-outbox", env=environment)
        assert "airflow-outbox" in result.output
        assert "_AIRFLOW_OUTBOX_COMPLETE" in result.output
