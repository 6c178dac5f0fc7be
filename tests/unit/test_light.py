"""The light distribution: the harvester, the commands and Spark's data source, with nothing of Airflow."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.scripts import script_of_ci

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
COMMANDS = """
import sys
before = set(sys.modules)
sys.path.insert(0, {tree!r})
import airflow_outbox, airflow_outbox.harvest.__main__, airflow_outbox.harvest.endpoint, airflow_outbox.spark.options
from airflow_outbox.cli import main
for name in main.list_commands(None):
    main.commands[name].get_help(main.make_context('airflow-outbox', [name, '--help'], resilient_parsing=True))
from importlib.metadata import packages_distributions
owners = packages_distributions()
print(airflow_outbox.__file__)
print(*{{owner for name in set(sys.modules) - before for owner in owners.get(name.partition('.')[0], ())}})
"""


@pytest.fixture(scope="module")
def light() -> ModuleType:
    return script_of_ci("light")


@pytest.fixture(scope="module")
def tree(light: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it is built from."""
    folder = tmp_path_factory.mktemp("light") / "tree"
    light.write_tree(folder)
    return folder


def needed(requirements: list[str]) -> set[str]:
    """The distributions that these bring along, by the metadata of those that are installed."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = {"", *requirement.extras}
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found.add(name)
        for line in distribution(name).requires or []:
            below = Requirement(line)
            if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(below)
    return found


def test_it_is_the_same_version_and_the_same_command_and_asks_for_no_airflow(tree: Path) -> None:
    project = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]
    whole = PROJECT["project"]
    assert project["name"] == "airflow-outbox-harvester"
    assert (project["version"], project["scripts"]) == (whole["version"], whole["scripts"])
    assert set(project["dependencies"]) == {line for line in whole["dependencies"] if "airflow" not in line}
    assert project["optional-dependencies"].keys() == {"metrics", "spark", "tracing"}
    assert "airflow" not in " ".join(line for extra in project["optional-dependencies"].values() for line in extra)
    assert "entry-points" not in project


def test_the_commands_load_nothing_that_it_does_not_ask_for(tree: Path) -> None:
    project = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]
    run = subprocess.run(
        [sys.executable, "-IB", "-c", COMMANDS.format(tree=str(tree))], capture_output=True, text=True, cwd="/"
    )
    assert run.returncode == 0, run.stderr
    file, _, loaded = run.stdout.partition("\n")
    assert Path(file) == tree / "airflow_outbox" / "__init__.py"
    asked = needed([*project["dependencies"], *project["optional-dependencies"]["metrics"]])
    assert {canonicalize_name(name) for name in loaded.split()} - {"airflow-outbox"} <= asked


def test_what_is_left_out_is_what_imports_airflow(light: ModuleType, tree: Path) -> None:
    there = {path.name for path in (ROOT / "airflow_outbox").iterdir() if path.name != "__pycache__"}
    assert there >= light.LEFT_OUT
    assert {path.name for path in (tree / "airflow_outbox").iterdir()} == there - light.LEFT_OUT
    for path in (tree / "airflow_outbox").rglob("*.py"):
        assert "from airflow." not in path.read_text("utf-8"), path
