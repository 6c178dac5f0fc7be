"""The output of `status`: the verdict first; then a table where there is room, else one fact a line."""

from __future__ import annotations

import io
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner
from rich.console import Console

from airflow_outbox.cli import main
from airflow_outbox.cli.status import show
from airflow_outbox.operate.parked_requests import ParkedCounts
from airflow_outbox.operate.status import OutboxStatus, ShardStatus
from airflow_outbox.values.verdict import State, Verdict

HOSTILE = "[red]x[/red] \x1b[2J"
SINCE = datetime(2026, 11, 23, 12, tzinfo=UTC)
SHARD = ShardStatus(0, "a:1", UUID(int=1), SINCE, 0.5, 12, 3, 250.0, False, HOSTILE, SINCE)
FOUND = OutboxStatus(
    outbox="outbox",
    verdict=Verdict(State.STALLED, f"a:1: {HOSTILE}", SINCE, "Make room", (f"b:2: {HOSTILE}",)),
    outbox_id=UUID(int=7),
    incarnation=1,
    backlog=100_000,
    backlog_is_exact=False,
    oldest_age=75.0,
    dead_rows=9,
    oldest_holder=None,
    shards=[SHARD],
    parked=ParkedCounts({"unknown_topic": 2}, 5),
    doubt=None,
)


def shown(found: OutboxStatus | Verdict, *, width: int, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    show(found, console, session_timeout=6)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 119, 120, 250])
def test_it_opens_with_the_verdict_and_shows_every_fact(width: int) -> None:
    text = shown(FOUND, width=width)
    assert text.startswith("STALLED since 2026-11-23 12:00:00 UTC (")
    whole = " ".join(text.replace("│", " ").split())
    for fact in ("to do: Make room", "note: b:2:", "more than 100000", "75.0 s", "a:1", "12", "250", "2 unknown_topic"):
        assert fact in whole
    assert ("│" in text) == (width >= 120)
    if width == 119:
        assert "\nwaiting: more than 100000 records wait, the oldest for 75.0 s\n" in text


def test_nothing_in_it_acts_on_a_terminal() -> None:
    for width in (100, 200):
        assert "\x1b" not in shown(FOUND, width=width)
        assert "\\x1b[2J" in shown(FOUND, width=width)
        assert "[red]" in shown(FOUND, width=width)


def test_a_terminal_shows_colours() -> None:
    assert "\x1b[1;31mSTALLED\x1b[0m" in shown(FOUND, width=100, terminal=True)
    healthy = Verdict(State.HEALTHY, "a:1 leads")
    assert shown(healthy, width=100, terminal=True).startswith("\x1b[1;32mHEALTHY\x1b[0m: a:1 leads")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "outbox.yaml"
    file.write_text("data_source: host=127.0.0.1 port=1 dbname=x\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n")
    return file


def run(file: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["status", "-f", str(file), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_without_postgres_it_is_unknown(file: Path) -> None:
    status, text = run(file)
    assert status == 1
    assert text.startswith("UNKNOWN: can't connect to Postgres")
    assert "to do: Check the data source" in text
    status, text = run(file, "--output", "json", "--fail-unless-leading")
    assert (status, '"state": "unknown"' in text) == (1, True)


def test_watching_goes_with_no_probe(file: Path) -> None:
    for option in (["--fail-unless-leading"], ["--fail-if-older-than", "60s"], ["--ticket", "x"]):
        status, text = run(file, "--watch", *option)
        assert (status, "--watch goes with" in text) == (2, True)
    assert run(file, "--fail-if-older-than", "soon")[0] == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], 0),
        (["--fail-unless-leading"], 0),
        (["--fail-if-older-than", "75s"], 0),
        (["--fail-if-older-than", "74s"], 3),
        (["--fail-if-older-than", "1m", "--fail-unless-leading"], 3),
    ],
)
def test_probes_fail_with_3(file: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: int) -> None:
    monkeypatch.setattr("airflow_outbox.cli.status._read", lambda _: FOUND)
    status, text = run(file, *options)
    assert status == expected
    assert ("fails: the oldest record has waited for 75.0 s" in text) == (expected == 3)


@pytest.mark.parametrize("is_swallowed", [False, True])
def test_watching_shows_it_again_until_it_is_interrupted(
    file: Path, monkeypatch: pytest.MonkeyPatch, is_swallowed: bool
) -> None:
    looks: list[float | None] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            looks.append(timeout)
            try:
                if len(looks) == 2:
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if not is_swallowed:
                    raise
            return self.is_set()

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("airflow_outbox.cli.status._read", lambda _: FOUND)
    monkeypatch.setattr("airflow_outbox.cli.status.Event", Interrupted)
    try:
        status, text = run(file, "--watch", "--interval", "500ms")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, looks, text.count("STALLED since")) == (0, [0.5, 0.5], 2)
