"""Build the distribution airflow-outbox-harvester: this package without the parts that need Airflow.

It is for machines that only harvest, or only write from Spark. It has the same modules as airflow-outbox, the same
version and the same command, and asks for no Airflow. From the root of a checkout:

    python .ci/light.py --output dist
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAME = "airflow-outbox-harvester"
LEFT_OUT = frozenset(
    {"airflow_cli", "asset_listener.py", "assets.py", "demo", "hooks", "links", "operators", "provider_info.py"}
    | {"sensors", "triggers", "ui", "version_compat.py"}
)
"""What is in `airflow_outbox/` for Airflow alone."""
_EXTRAS = ("metrics", "spark", "tracing")
_README = """The harvester and the commands of airflow-outbox, and its data source for Spark, without Airflow.

Don't install it beside airflow-outbox: they have the same modules."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the wheel goes (default: dist/)")
    build(parser.parse_args(arguments).output.resolve())


def build(output: Path, *, environment: Mapping[str, str] = os.environ) -> None:
    """Build the wheel. Raises subprocess.CalledProcessError."""
    with TemporaryDirectory() as folder:
        write_tree(Path(folder))
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(output), folder]
        subprocess.run(command, check=True, env=dict(environment), stdout=subprocess.DEVNULL)


def write_tree(folder: Path) -> None:
    """Write what the distribution is built from."""
    shutil.copytree(ROOT / "airflow_outbox", folder / "airflow_outbox", ignore=_left_out)
    shutil.copy(ROOT / "LICENSE", folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (folder / "pyproject.toml").write_text(light_project(project), "utf-8")


def light_project(whole: Mapping[str, Any]) -> str:
    """The pyproject.toml of the distribution, from the whole one's."""
    project = whole["project"]
    extras = {name: _without_airflow(project["optional-dependencies"][name]) for name in _EXTRAS}
    source = "airflow_outbox/spark/pyspark_outbox.py"
    lines = [
        "[build-system]",
        f"requires = {_toml(whole['build-system']['requires'])}",
        f"build-backend = {_toml(whole['build-system']['build-backend'])}",
        "[project]",
        f"name = {_toml(NAME)}",
        *(f"{key} = {_toml(project[key])}" for key in ("version", "description", "license", "license-files")),
        f"requires-python = {_toml(project['requires-python'])}",
        f"readme = {{text = {_toml(_README)}, content-type = 'text/markdown'}}",
        f"classifiers = {_toml([line for line in project['classifiers'] if 'Airflow' not in line])}",
        f"dependencies = {_toml(_without_airflow(project['dependencies']))}",
        "[project.optional-dependencies]",
        *(f"{name} = {_toml(requirements)}" for name, requirements in extras.items()),
        "[project.scripts]",
        *(f"{name} = {_toml(target)}" for name, target in project["scripts"].items()),
        "[tool.hatch.build.targets.wheel]",
        "packages = ['airflow_outbox']",
        "[tool.hatch.build.targets.wheel.force-include]",
        f"{_toml(source)} = {_toml(whole['tool']['hatch']['build']['targets']['wheel']['force-include'][source])}",
    ]
    return "\n".join(lines) + "\n"


def _left_out(folder: str, names: Sequence[str]) -> set[str]:
    here = LEFT_OUT if Path(folder) == ROOT / "airflow_outbox" else frozenset()
    return {name for name in names if name in here or name == "__pycache__"}


def _without_airflow(requirements: Sequence[str]) -> list[str]:
    return [line for line in requirements if not line.startswith("apache-airflow")]


def _toml(value: str | Sequence[str]) -> str:
    """Text, or a list of texts, which TOML writes as JSON does."""
    return json.dumps(value)


if __name__ == "__main__":
    main()
