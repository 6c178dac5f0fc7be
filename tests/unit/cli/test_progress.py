"""How far a command is: shown on a terminal only."""

from __future__ import annotations

import io

from rich.console import Console

from airflow_outbox.cli.progress import bars, waiting


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, color_system=None), file


def test_a_terminal_shows_how_far_it_is() -> None:
    shown, file = console(terminal=True)
    with bars(shown) as tell:
        tell("records [red]", 0, 200)
        tell("records [red]", 200, 200)
    assert "records [red]" in file.getvalue()
    assert "200/200" in file.getvalue()


def test_a_terminal_shows_what_is_waited_for() -> None:
    shown, file = console(terminal=True)
    with waiting("waiting for \x1b[2J somebody", shown):
        pass
    assert "waiting for \\x1b[2J somebody" in file.getvalue()


def test_a_file_gets_nothing_of_it() -> None:
    shown, file = console(terminal=False)
    with bars(shown) as tell, waiting("somebody", shown):
        tell("records", 1, 2)
    assert file.getvalue() == ""
