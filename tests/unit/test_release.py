"""`./dev release`: what it asks of a tree, and of what was built from it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.scripts import script_of_ci

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    ".ci/run",
    ".gitignore",
    "CHANGELOG.md",
    "airflow_outbox/__init__.py",
    "airflow_outbox/spark/pyspark_outbox.py",
    "dev",
    "docs/index.md",
    "tests/conftest.py",
]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return script_of_ci("release")


def test_a_release_is_committed_and_has_its_day_in_the_changelog(release: ModuleType) -> None:
    announced = "# Changelog\n\n## 1.0.0 (2030-01-31)\n"
    assert release.unready("1.0.0", changes="", changelog=announced) == []
    [problem] = release.unready("1.0.0", changes=" M dev", changelog=announced)
    assert "not committed" in problem
    for changelog in ("# Changelog\n\n## 1.0.0 (not released yet)\n", announced.replace("1.0.0", "1.0.1")):
        [problem] = release.unready("1.0.0", changes="", changelog=changelog)
        assert "## 1.0.0 (2030-01-31)" in problem


def test_the_wheel_is_compared_with_the_tree(release: ModuleType) -> None:
    names = ["airflow_outbox/__init__.py", "pyspark_outbox.py", "airflow_outbox-1.0.0.dist-info/METADATA"]
    assert release.in_wheel(names) == release.for_wheel(FILES)
    assert release.in_wheel([*names, "tests/conftest.py"]) != release.for_wheel(FILES)


def test_the_sdist_is_compared_with_the_tree(release: ModuleType) -> None:
    names = [f"airflow_outbox-1.0.0/{name}" for name in (*FILES, "PKG-INFO")]
    assert release.in_sdist(names) == release.for_sdist(FILES)
    assert release.in_sdist(names[1:]) != release.for_sdist(FILES)


def test_a_difference_is_named(release: ModuleType) -> None:
    with pytest.raises(release.NotReadyError, match=r"the\.whl lacks a b, holds c, which git does not know\. Look"):
        release._compare("the.whl", {"c", "d"}, {"a", "b", "d"})


def test_nothing_is_uploaded(release: ModuleType) -> None:
    text = (ROOT / ".ci" / "release.py").read_text("utf-8")
    assert re.findall(r'"(?:upload|push|tag)"', text) == []


@pytest.mark.long
def test_the_rehearsal_of_a_release(tmp_path: Path) -> None:
    """On the registries: twine, and what the wheel needs, are fetched."""
    command = [ROOT / "dev", "release", "--rehearse", "--output", tmp_path]
    rehearsal = subprocess.run(command, capture_output=True, text=True)
    assert rehearsal.returncode == 0, rehearsal.stderr
    made = {path.name.partition("-")[0] for path in tmp_path.iterdir() if path.name[0] != "."}
    assert made == {"airflow_outbox", "airflow_outbox_harvester"}
    assert "nothing was uploaded" in rehearsal.stderr
