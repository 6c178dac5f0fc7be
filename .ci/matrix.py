"""The install matrix: the package in environments of other Pythons and other Airflows, each with one real harvest.

    .venv/bin/python .ci/matrix.py --all
    .venv/bin/python .ci/matrix.py --airflow 3.1 --airflow 3.2 --python python3.12
    .venv/bin/python .ci/matrix.py --least
    .venv/bin/python .ci/matrix.py --least --short

`--all` is each Airflow with each Python that pyproject.toml promises, as far as these are on this machine. Each
environment is new. There, pip has to find no conflict, Airflow has to find the provider, the package's Airflow modules
have to import, and the installed command has to make an outbox, harvest it, and show it, on real servers. `--least`
installs the least version of each dependency that pyproject.toml allows, without Airflow, which has bounds of its own.
`--short` starts no servers and harvests nothing: the modules import, and the command answers. A line for each
environment says what was installed; the exit status is 1 if any failed. A pair that Airflow itself excludes, by the
Requires-Python of its newest release of that minor version, is named with that reason and does not count as failed.
docs/versions.md has what was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from packaging.specifiers import SpecifierSet

from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[1]
AIRFLOWS = ("3.0", "3.1", "3.2", "3.3")
_LIGHT_MODULES = (
    "import airflow_outbox, airflow_outbox.audit.run, airflow_outbox.cli, airflow_outbox.harvest.__main__,"
    " airflow_outbox.harvest.endpoint, airflow_outbox.positions.__main__, airflow_outbox.debezium.operating"
)
_MODULES = (
    "import airflow_outbox.assets, airflow_outbox.hooks.outbox, airflow_outbox.operators.stash,"
    " airflow_outbox.sensors.harvest, airflow_outbox.sensors.positions, airflow_outbox.sensors.published,"
    " airflow_outbox.triggers.harvest, airflow_outbox.triggers.positions, airflow_outbox.triggers.published,"
    " airflow_outbox.triggers.watermark, airflow_outbox.links.outbox"
)
_STASH = (
    "import sys, psycopg; from airflow_outbox import OutboxRecord, stash\n"
    "with psycopg.connect(sys.argv[1]) as connection:\n"
    "    stash(connection, [OutboxRecord(sys.argv[2], str(n), str(n)) for n in range(100)], outbox=sys.argv[2])\n"
)


@dataclass(frozen=True, slots=True)
class Place:
    """An environment: its name, its Python, and what pip is given."""

    name: str
    python: str
    requirements: tuple[str, ...]
    airflow: str | None
    """The minor version of Airflow, where there is one."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Real servers, and the folder for configurations."""

    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka
    folder: Path


class FailedError(Exception):
    """An environment does not do. The message is the output of what failed."""


class ExcludedError(Exception):
    """Airflow is not made for this Python. The message says by which words of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--airflow", action="append", help=f"minor versions (default: {' '.join(AIRFLOWS)})")
    parser.add_argument("--python", action="append", help="programs (default: the Python that runs this)")
    parser.add_argument("--all", action="store_true", help="all promised Pythons that are here, with all Airflows")
    parser.add_argument("--least", action="store_true", help="only the least versions, without Airflow")
    parser.add_argument("--short", action="store_true", help="without servers, and without a harvest")
    options = parser.parse_args(arguments)
    pythons = options.python or ([*promised_pythons()] if options.all else [sys.executable])
    places = [*least(pythons)] if options.least else [*with_airflow(pythons, options.airflow or AIRFLOWS)]
    failed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="airflow-outbox-matrix-")))
        folder.chmod(0o755)
        servers = None if options.short else started(folder, stack)
        for number, place in enumerate(places):
            with TemporaryDirectory(dir=folder) as environment:
                try:
                    line = tried(place, Path(environment), servers, number)
                    print(json.dumps(line), flush=True)
                except ExcludedError as error:
                    print(json.dumps({"environment": place.name, "excluded": str(error)}), flush=True)
                except FailedError as error:
                    failed += 1
                    print(json.dumps({"environment": place.name, "failed": str(error)[-2000:]}), flush=True)
    return 1 if failed else 0


def started(folder: Path, stack: ExitStack) -> Servers:
    """Servers that stop with the stack."""
    postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
    classpath = kafka_jars(ROOT / ".dev" / "jars")
    kafka = stack.enter_context(EmbeddedKafka(folder / "kafka", classpath=classpath))
    return Servers(postgres, kafka, folder)


def promised() -> list[str]:
    """The minor versions of Python that pyproject.toml names."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    return [found[1] for line in lines if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))]


def promised_pythons() -> Iterator[str]:
    """Their programs, where pyenv keeps them or on the path. Those that are not here are named on stderr."""
    for version in promised():
        kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
        program = str(kept[-1]) if kept else shutil.which(f"python{version}")
        if program:
            yield program
        else:
            print(f"matrix: there is no Python {version} here", file=sys.stderr)


def with_airflow(pythons: Sequence[str], airflows: Sequence[str]) -> Iterator[Place]:
    """The environments with Airflow."""
    for python in pythons:
        for airflow in airflows:
            requirements = (f"apache-airflow=={airflow}.*", f"{ROOT}[metrics]")
            yield Place(f"{python_version(python)}, Airflow {airflow}", python, requirements, airflow)


def least(pythons: Sequence[str]) -> Iterator[Place]:
    """The environments with the least versions, and without Airflow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
    bounds = tuple(lowest([line for line in wanted if not line.startswith("apache-airflow")]))
    for python in pythons:
        yield Place(f"{python_version(python)}, least versions", python, bounds, airflow=None)


def lowest(requirements: Sequence[str]) -> Iterator[str]:
    """Each requirement as its least version: `click>=8.1` as `click==8.1`."""
    for line in requirements:
        name, _, version = line.partition(">=")
        yield f"{name}=={version}"


def python_version(python: str) -> str:
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def tried(place: Place, environment: Path, servers: Servers | None, number: int) -> dict[str, object]:
    """Make the environment and try it, without servers in short; what was installed.

    Raises FailedError, and ExcludedError where Airflow is not made for this Python.
    """
    run([place.python, "-m", "venv", str(environment)])
    python = str(environment / "bin" / "python")
    if place.airflow is not None:
        ask_airflow(python, place.airflow)
    run([python, "-m", "pip", "install", "--quiet", *place.requirements])
    if place.airflow is not None:
        run([python, "-m", "pip", "check"])
        home = {"AIRFLOW_HOME": str(environment / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        run([python, "-c", _MODULES], home)
        listed = run([str(environment / "bin" / "airflow"), "providers", "list", "-o", "json"], home)
        providers = json.loads(listed[listed.index("[{") :])  # older releases log to stdout, too
        if "airflow-outbox" not in {each["package_name"] for each in providers}:
            raise FailedError("`airflow providers list` does not have airflow-outbox")
    else:
        run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(ROOT)])
    run([python, "-c", _LIGHT_MODULES])
    run([str(environment / "bin" / "airflow-outbox"), "harvest", "--help"])
    harvested = None if servers is None else harvest(environment, servers, f"matrix_{number}")
    versions = json.loads(run([python, "-m", "pip", "list", "--format", "json"]))
    shown = re.compile("apache-airflow(-providers-(apache-kafka|postgres))?|click|confluent-kafka|psycopg|pydantic")
    return {
        "environment": place.name,
        "harvested": harvested,
        "installed": {each["name"]: each["version"] for each in versions if shown.fullmatch(each["name"])},
    }


def ask_airflow(python: str, airflow: str) -> None:
    """Ask the newest release of this minor version for which Pythons it is. Raises ExcludedError, FailedError."""
    asked = ("--dry-run", "--no-deps", "--ignore-requires-python", "--quiet", "--report", "-")
    report = json.loads(run([python, "-m", "pip", "install", *asked, f"apache-airflow=={airflow}.*"]))
    reason = excluded(report["install"][0]["metadata"], minor_version(python_version(python)))
    if reason is not None:
        raise ExcludedError(reason)


def excluded(metadata: Mapping[str, str], python: str) -> str | None:
    """Why a package with this metadata is not for a minor version of Python, such as 3.13; None if it is for it.

    The minor version is what counts: Airflow 3.0 writes `!=3.13`, means all of 3.13, and excludes 3.13.0 only.
    """
    wanted = metadata.get("requires_python", "")
    if python in SpecifierSet(wanted):
        return None
    return f"{metadata['name']} {metadata['version']} is for Python {wanted}"


def minor_version(told: str) -> str:
    """`3.13` of `Python 3.13.0`."""
    return ".".join(told.split()[-1].split(".")[:2])


def harvest(environment: Path, servers: Servers, name: str) -> int:
    """Make an outbox, stash, harvest; how many records a consumer that reads committed sees. Raises FailedError."""
    data_source, bootstrap = servers.postgres.dsn(), servers.kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    file = servers.folder / f"{name}.yaml"
    settings = {"data_source": data_source, "outbox_table": name, "kafka": {"bootstrap.servers": bootstrap}}
    file.write_text(json.dumps(settings), "utf-8")
    command = str(environment / "bin" / "airflow-outbox")
    run([command, "init", "-f", str(file)])
    run([str(environment / "bin" / "python"), "-c", _STASH, data_source, name])
    run([command, "harvest", "-f", str(file), "--until", "drained"])
    run([command, "status", "-f", str(file)])
    reading = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    with closing(Consumer(reading)) as consumer:
        consumer.subscribe([name])
        seen: set[bytes | None] = set()
        for _ in range(60):
            seen |= {message.value() for message in consumer.consume(200, timeout=1) if message.error() is None}
            if len(seen) == 100:
                return len(seen)
    raise FailedError(f"a consumer saw {len(seen)} of 100 records")


def run(command: Sequence[str], more: dict[str, str] | None = None) -> str:
    """The output of a command. Raises FailedError."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **(more or {})}, cwd="/")
    if done.returncode:
        raise FailedError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
