"""Rows for people: side by side where there is room, else one fact a line."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone

import pytest
from rich.console import Console

from airflow_outbox.cli import tables
from airflow_outbox.cli.tables import print_rows

ROWS = [
    {"id": 7, "topic": "orders", "parked_at": datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))},
    {"id": 8, "topic": "\x1b[2J", "parked_at": None},
]


def printed(monkeypatch: pytest.MonkeyPatch, *, width: int, terminal: bool) -> str:
    file = io.StringIO()
    monkeypatch.setattr(
        tables, "Console", lambda: Console(file=file, width=width, force_terminal=terminal, color_system=None)
    )
    print_rows(ROWS, ("id", "topic", "parked_at"), title="2 records")
    return file.getvalue()


def test_a_narrow_terminal_shows_one_fact_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, width=80, terminal=True)
    assert [line.rstrip() for line in text.splitlines()] == [
        "2 records",
        "",
        "id: 7",
        "topic: orders",
        "parked: 2026-01-31 12:00:00 UTC",
        "",
        "id: 8",
        "topic: \\x1b[2J",
    ]


@pytest.mark.parametrize(("width", "terminal"), [(120, True), (40, False)])
def test_a_wide_terminal_and_a_file_get_a_table(monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool) -> None:
    text = printed(monkeypatch, width=width, terminal=terminal)
    assert "2026-01-31 12:00:00 UTC" in text
    assert "│" in text
    assert datetime(2026, 1, 31, 12, tzinfo=UTC) == ROWS[0]["parked_at"]
