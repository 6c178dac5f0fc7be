"""Answers in colours: on a terminal that wants them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from airflow_outbox.cli.answers import answer, say


@click.command()
@click.option("--output", default="text")
def command(output: str) -> None:
    say(" a \x1b[2J topic", mark="missing:", colour="red")
    answer(["one", "two"], {"lines": 2}, output=output)


def test_only_a_terminal_gets_colours_and_nothing_acts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = CliRunner().invoke(command, color=True).output
    assert coloured.splitlines()[0] == "\x1b[31m\x1b[1mmissing:\x1b[0m a \\x1b[2J topic"
    assert CliRunner().invoke(command).output.splitlines()[0] == "missing: a \\x1b[2J topic"
    monkeypatch.setenv("NO_COLOR", "1")
    assert CliRunner().invoke(command, color=True).output.splitlines()[0] == "missing: a \\x1b[2J topic"


def test_a_program_gets_one_line_of_json() -> None:
    assert CliRunner().invoke(command, ["--output", "json"]).output.splitlines()[1:] == ['{"lines": 2}']
    assert CliRunner().invoke(command).output.splitlines()[1:] == ["one", "two"]
