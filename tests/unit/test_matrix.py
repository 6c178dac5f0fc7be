"""The install matrix: what pyproject.toml and the page promise is what it tries."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from support.scripts import script_of_ci

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    return script_of_ci("matrix")


def test_every_promised_pair_was_tried_or_is_excluded_by_airflow(matrix: ModuleType) -> None:
    page = (ROOT / "docs" / "versions.md").read_text("utf-8")
    _, _, tried = page.partition("| Python | Airflow |")
    rows = re.findall(r"^\| (3\.\d+)\.\d+ \| (3\.\d+)\.\d+ \|", tried, re.MULTILINE)
    excluded = re.findall(r"^Airflow (\S+) excludes Python (\S+):", page, re.MULTILINE)
    pairs = {*rows, *((python, airflow) for airflow, python in excluded)}
    assert pairs == {(python, airflow) for python in matrix.promised() for airflow in matrix.AIRFLOWS}
    assert len(pairs) == len(rows) + len(excluded)
    [promised] = re.findall(r"^\| Python \| (3\.\d+,[^|]*) \|$", page, re.MULTILINE)
    assert promised.split(", ") == matrix.promised()


def test_the_least_versions_are_those_of_the_project(matrix: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={matrix.promised()[0]}"
    assert f"apache-airflow>={matrix.AIRFLOWS[0]}" in project["dependencies"]
    [place] = matrix.least([sys.executable])
    assert "confluent-kafka==2.6" in place.requirements
    assert all("==" in each and "airflow" not in each for each in place.requirements)


@pytest.mark.parametrize(
    ("wanted", "python", "reason"),
    [
        ("!=3.13,>=3.9", "3.13", "apache-airflow 3.0.6 is for Python !=3.13,>=3.9"),
        ("!=3.13,>=3.9", "3.12", None),
        ("<3.14,>=3.10", "3.13", None),
        ("<3.14,>=3.10", "3.14", "apache-airflow 3.0.6 is for Python <3.14,>=3.10"),
    ],
)
def test_a_pair_that_airflow_excludes_is_named_by_airflows_own_words(
    matrix: ModuleType, wanted: str, python: str, reason: str | None
) -> None:
    metadata = {"name": "apache-airflow", "version": "3.0.6", "requires_python": wanted}
    assert matrix.excluded(metadata, python) == reason


def test_a_pair_that_airflow_excludes_is_not_a_failure(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(error: type[Exception]) -> tuple[int, object]:
        def tried(*_: object) -> None:
            raise error("so")

        monkeypatch.setattr(matrix, "tried", tried)
        status = matrix.main(["--short", "--airflow", "3.0"])
        return status, json.loads(capsys.readouterr().out)

    here = f"{matrix.python_version(sys.executable)}, Airflow 3.0"
    assert told(matrix.ExcludedError) == (0, {"environment": here, "excluded": "so"})
    assert told(matrix.FailedError) == (1, {"environment": here, "failed": "so"})
