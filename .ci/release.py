"""`./dev release`: build the distribution, prove that it can be installed, and stop before the upload.

It builds the sdist, and the wheel from the sdist, so that the sdist is shown to be whole, and the light distribution
(`light.py`). Then it compares both with what git knows, lets twine judge the metadata, and installs each wheel into an
environment of its own: in one, Airflow has to find the provider; in the other, the harvester runs without Airflow.
Nothing is uploaded: the last lines say how to do that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TWINE = "twine==7.0.0"
_LIGHT = "airflow_outbox_harvester"
_MOVED = {"airflow_outbox/spark/pyspark_outbox.py": "pyspark_outbox.py"}
_IN_SDISTS = ("airflow_outbox/", "benchmarks/", "dags/", "docs/", "tests/")
_PUBLIC = "from airflow_outbox import OutboxRecord, Ticket, astash, cloud_event, published, serialized_record, stash"


class NotReadyError(Exception):
    """The release can't be made from this. The message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 when wheel and sdist are ready to be uploaded."""
    parser = argparse.ArgumentParser(prog="./dev release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="also from changes that are not committed or announced")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where they go (default: dist/)")
    options = parser.parse_args(arguments)
    try:
        _release(options.output, rehearse=options.rehearse)
    except NotReadyError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _release(output: Path, *, rehearse: bool) -> None:
    version = _version()
    problems = unready(version, changes=_git("status", "--porcelain"), changelog=_text("CHANGELOG.md"))
    if problems and not rehearse:
        raise NotReadyError("; ".join(problems) + ". To try it all the same: ./dev release --rehearse")
    for earlier in output.glob("airflow_outbox*"):
        earlier.unlink()
    files = _git("ls-files").splitlines()
    _say("building the sdist, the wheel from it, and the light wheel")
    wheel, sdist, light = _build(output, version)
    _say("comparing them with the tree")
    with zipfile.ZipFile(wheel) as archive:
        _compare(wheel.name, in_wheel(archive.namelist()), for_wheel(files))
    with tarfile.open(sdist) as archive:
        _compare(sdist.name, in_sdist(archive.getnames()), for_sdist(files))
    with TemporaryDirectory() as folder:
        _say("asking twine")
        twine = _environment(Path(folder) / "tools", TWINE)
        _run(twine, "-m", "twine", "check", "--strict", *map(str, (wheel, sdist, light)))
        _say("installing each wheel into an environment of its own (some minutes)")
        pins = ("--constraint", str(ROOT / "constraints.txt"))
        check_without_airflow(_environment(Path(folder) / "light", *pins, f"{light}[metrics]"), version)
        check_installed(_environment(Path(folder) / "clean", *pins, str(wheel)), version, Path(folder) / "home")
    for path in (wheel, sdist, light):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}")
    if "Source" not in _project().get("urls", {}):
        _say("the index will show README.md without links, because pyproject.toml has no Source in [project.urls]")
    for problem in problems:
        _say(f"not ready for an upload: {problem}")
    _say(f"nothing was uploaded. To do that: git tag v{version} && twine upload {output}/airflow_outbox*")


def unready(version: str, *, changes: str, changelog: str) -> list[str]:
    """What speaks against a release, given git's short status and the changelog."""
    problems = []
    if changes:
        problems.append("there are changes that are not committed")
    heading = re.search(rf"^## {re.escape(version)} \((.*)\)$", changelog, re.MULTILINE)
    if heading is None or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading[1]):
        problems.append(f"CHANGELOG.md does not say when {version} is released: ## {version} (2030-01-31)")
    return problems


def for_wheel(files: Iterable[str]) -> set[str]:
    """What the wheel has to hold beside its metadata, by git's list of files."""
    return {_MOVED.get(file, file) for file in files if file.startswith("airflow_outbox/")}


def in_wheel(names: Iterable[str]) -> set[str]:
    """What a wheel holds beside its metadata."""
    return {name for name in names if ".dist-info/" not in name}


def for_sdist(files: Iterable[str]) -> set[str]:
    """What the sdist has to hold, by git's list of files: all but what begins with a dot, and .ci."""
    return {file for file in files if file.startswith((*_IN_SDISTS, ".ci/")) or ("/" not in file and file[0] != ".")}


def in_sdist(names: Iterable[str]) -> set[str]:
    """What an sdist holds beside its metadata and the .gitignore that its builder takes along."""
    inside = {name.partition("/")[2] for name in names}
    return inside - {"", "PKG-INFO", ".gitignore"}


def check_without_airflow(python: Path, version: str) -> None:
    """Raises NotReadyError unless the environment has the commands of this version, and no Airflow."""
    _run(python, "-m", "pip", "check")
    _run(python, "-c", f"{_PUBLIC}; import airflow_outbox.harvest.__main__, airflow_outbox.harvest.endpoint")
    _run(python, "-c", "from importlib.util import find_spec as f; raise SystemExit(f('airflow') is not None)")
    _check_version(_run(python.with_name("airflow-outbox"), "--version"), version)
    _run(python.with_name("airflow-outbox"), "harvest", "--help")


def check_installed(python: Path, version: str, home: Path) -> None:
    """Raises NotReadyError unless the environment has this version whole, and Airflow finds the provider in it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    environment["AIRFLOW_HOME"] = str(home)
    _run(python, "-m", "pip", "check")
    _run(python, "-c", _PUBLIC, environment=environment)
    _check_version(_run(python.with_name("airflow-outbox"), "--version", environment=environment), version)
    listed = _run(python.with_name("airflow"), "providers", "list", "-o", "json", environment=environment)
    providers = json.loads(listed)
    found = [provider["version"] for provider in providers if provider["package_name"] == "airflow-outbox"]
    if found != [version]:
        raise NotReadyError(f"`airflow providers list` has airflow-outbox in the versions {found}, and not {version}")


def _check_version(told: str, version: str) -> None:
    if version not in told.split():
        raise NotReadyError(f"the installed command says that it is {told.strip()}, and not {version}")


def _build(output: Path, version: str) -> tuple[Path, Path, Path]:
    # The time of the last commit, so that everybody who builds the same commit gets the same files.
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip(),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    _run(Path(sys.executable), "-m", "build", "--outdir", str(output), str(ROOT), environment=environment)
    _run(Path(sys.executable), str(ROOT / ".ci" / "light.py"), "--output", str(output), environment=environment)
    wheel, light = (output / f"{name}-{version}-py3-none-any.whl" for name in ("airflow_outbox", _LIGHT))
    return wheel, output / f"airflow_outbox-{version}.tar.gz", light


def _environment(folder: Path, *requirements: str) -> Path:
    """Make an environment with these and nothing else; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def _compare(name: str, held: set[str], wanted: set[str]) -> None:
    differences = list(_differences(held, wanted))
    if differences:
        raise NotReadyError(f"{name} {', '.join(differences)}. Look at [tool.hatch.build] in pyproject.toml")


def _differences(held: set[str], wanted: set[str]) -> Iterator[str]:
    if missing := sorted(wanted - held):
        yield f"lacks {' '.join(missing)}"
    if foreign := sorted(held - wanted):
        yield f"holds {' '.join(foreign)}, which git does not know"


def _run(program: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    run = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment, cwd="/")
    if run.returncode:
        raise NotReadyError(f"{program.name} {' '.join(arguments)} failed:\n{run.stdout}{run.stderr}")
    return run.stdout


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True).stdout


def _version() -> str:
    return str(_project()["version"])


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(_text("pyproject.toml"))["project"]
    return found


def _text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
