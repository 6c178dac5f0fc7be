"""The output of `status --history`: a line a step, gaps, and no more lines than people read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.cli import main
from airflow_outbox.cli.history import show_history, step_for
from airflow_outbox.values.health_history import HistoryPoint
from airflow_outbox.values.verdict import Backlog, State

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HEALTHY = HistoryPoint(NOON, State.HEALTHY, Backlog(3, True, 0.02), 1234.5, 0.0123, 2.5)
LAGGING = HistoryPoint(NOON + timedelta(seconds=20), State.NO_LEADER, Backlog(100_000, False, 240.0), 0.0, None, None)
UNKNOWN = HistoryPoint(NOON + timedelta(seconds=80), State.LAGGING, None, 0.0, None, None)


def test_a_line_a_step_and_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    show_history([HEALTHY, LAGGING, UNKNOWN], step=20, output="table")
    assert capsys.readouterr().out == (
        "from (UTC)           state       waiting    oldest  records/s       p50       p99\n"
        "2026-11-23 12:00:00  HEALTHY           3     20 ms       1234     12 ms     2.5 s\n"
        "2026-11-23 12:00:20  NO LEADER   >100000     4 min          0\n"
        "nobody led, or nobody could note it, for 40.0 s\n"
        "2026-11-23 12:01:20  LAGGING           ?                    0\n"
    )


def test_nothing_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_history([], step=10, output="table")
    assert capsys.readouterr().out.startswith("Nothing was noted: nobody has led")


def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    show_history([HEALTHY], step=10, output="json")
    [point] = json.loads(capsys.readouterr().out)
    assert point["backlog"] == {"records": 3, "is_exact": True, "oldest_age": 0.02}
    assert (point["state"], point["latency_p99"]) == ("healthy", 2.5)


@pytest.mark.parametrize(("seconds", "step"), [(60, 10), (600, 10), (601, 20), (3600, 60), (86_400, 1440)])
def test_people_get_at_most_sixty_lines_and_programs_all(seconds: float, step: float) -> None:
    assert step_for(seconds, output="table") == step
    assert seconds / step <= 60
    assert step_for(seconds, output="json") == 10


@pytest.mark.parametrize("option", [["--watch"], ["--fail-unless-leading"], ["--ticket", "x"]])
def test_history_goes_alone(tmp_path: Path, option: list[str]) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("{data_source: dbname=none, kafka: {bootstrap.servers: none}}")
    found = CliRunner().invoke(main, ["status", "-f", str(file), "--history", "1h", *option])
    assert found.exit_code == 2
    assert "--history goes with no other options" in found.output
