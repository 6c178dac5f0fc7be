"""The demo's parts that need no server: its result, its options, its folder, what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.demo.__main__ import main
from airflow_outbox.demo.check import CheckResult
from airflow_outbox.demo.display import Display, Progression
from airflow_outbox.demo.follow import DemoError
from airflow_outbox.demo.run import DemoOptions, result_line
from airflow_outbox.demo.servers import emptied


def test_the_result_is_one_json_object() -> None:
    verdict = CheckResult(delivered=9, missing=2, duplicates=1, out_of_order=3, problems=("…",))
    line = result_line(verdict, stashed=10, checked=8, seconds=61.26)
    assert line == (
        '{"stashed": 10, "delivered": 9, "missing": 2, "duplicates": 1, "out_of_order": 3, "checked": 8, '
        '"seconds": 61.3}'
    )
    assert json.loads(line)


@pytest.mark.parametrize(("rows", "month"), [(None, 1), (1, 1), (27_004, 1), (27_005, None), (336_776, None)])
def test_more_rows_than_january_has_are_taken_from_the_whole_year(rows: int | None, month: int | None) -> None:
    nowhere = Path("/nowhere")
    options = DemoOptions(once=True, rows=rows, folder=nowhere, dags=nowhere, jars=nowhere)
    assert options.month == month


@pytest.mark.parametrize("rows", ["0", "-1", "336777", "many"])
def test_a_number_of_rows_that_can_not_be(rows: str) -> None:
    refused = CliRunner().invoke(main, ["--once", "--rows", rows])
    assert refused.exit_code == 2
    assert "--rows" in refused.output


def test_a_demos_folder_is_emptied_and_any_other_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with emptied(folder):
        (folder / "data").mkdir()
    with emptied(folder):
        assert not (folder / "data").exists()
    other = tmp_path / "home"
    other.mkdir()
    (other / "letter").touch()
    with pytest.raises(DemoError, match="has files that are not a demo's"), emptied(other):
        pass
    assert (other / "letter").exists()


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with emptied(folder):
        (folder / "data").touch()
        with pytest.raises(DemoError, match="another demo runs in"), emptied(folder):
            pass
        assert (folder / "data").exists()


def test_without_a_terminal_progress_is_plain_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(total=1000) as display:
        display.say("Postgres runs")
        display.update(Progression(stashed=1000))  # within the first seconds: not yet due
        display.update(Progression(stashed=1000, published=1000, seen=1000))
        display.update(Progression(stashed=1000, published=1000, seen=1000))
    output, lines = capsys.readouterr()
    assert output == ""
    assert [line.split("s  ")[1] for line in lines.splitlines()] == [
        "Postgres runs",
        "stashed 1,000, published 1,000, seen 1,000 of 1,000",
    ]
    assert "\x1b" not in lines
