"""The distribution: what pyproject.toml promises, what the wheel holds, and that the pins keep the promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from hatchling.build import build_editable, build_wheel
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import airflow_outbox

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_outbox"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.!+]*)")


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """Version by name; every line of the file is a comment or a plain pin."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    matches = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), "a line is not of the form name==version"
    pins = {canonicalize_name(match[1]): match[2] for match in matches if match}
    assert len(pins) == len(matches), "a name is pinned twice"
    return pins


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        yield archive


def requirements(extras: set[str]) -> dict[str, SpecifierSet]:
    """The needs of `airflow-outbox[extras]` here, by name: its own, and those of its needs."""
    found: dict[str, SpecifierSet] = {}
    seen = set()
    waiting = [("airflow-outbox", frozenset(extras))]
    while waiting:
        needed = waiting.pop()
        if needed in seen:
            continue
        seen.add(needed)
        name, wanted = needed
        for line in distribution(name).requires or []:
            requirement = Requirement(line)
            if any(
                requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in {"", *wanted}
            ):
                key = canonicalize_name(requirement.name)
                found[key] = found.get(key, SpecifierSet()) & requirement.specifier
                waiting.append((key, frozenset(requirement.extras)))
    found.pop("airflow-outbox", None)
    return found


def test_the_installed_package_is_this_checkout() -> None:
    assert Path(airflow_outbox.__file__).parent == PACKAGE


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == airflow_outbox.__version__ == version("airflow-outbox")
    assert f"\n## {PROJECT['version']} " in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_entry_points_lead_to_something() -> None:
    points = {(point.group, point.name): point for point in distribution("airflow-outbox").entry_points}
    assert points.keys() == {
        ("airflow.plugins", "outbox"),
        ("apache_airflow_provider", "provider_info"),
        ("console_scripts", "airflow-outbox"),
    }
    assert points["airflow.plugins", "outbox"].load().name == "outbox"
    assert callable(points["console_scripts", "airflow-outbox"].load())
    provider = points["apache_airflow_provider", "provider_info"].load()()
    assert provider["package-name"] == "airflow-outbox"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    statements = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.sql")}
    assert {"airflow_outbox/sql/schema.sql", "airflow_outbox/sql/fence.sql"} <= statements
    assert any(path.startswith("airflow_outbox/sql/migrations/") for path in statements)
    of_the_page = {
        str(path.relative_to(ROOT))
        for folder in ("templates", "assets")
        for path in (PACKAGE / "ui" / folder).iterdir()
    }
    assert "airflow_outbox/ui/templates/one.html" in of_the_page
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules ^= {"airflow_outbox/spark/pyspark_outbox.py", "pyspark_outbox.py"}
    assert packed == {*modules, *statements, *of_the_page, "airflow_outbox/py.typed"}


def test_spark_finds_the_data_source_at_the_top_level(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """It finds it where the package is installed, in a checkout's environment, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        editable = zipfile.ZipFile(tmp_path / build_editable(str(tmp_path)))
    for archive, folder in ((wheel, "whole"), (editable, "editable")):
        archive.extractall(tmp_path / folder)
        code = (
            "import pyspark_outbox, sys; from pyspark.sql.worker.lookup_data_sources import iter_modules;"
            "assert 'airflow' not in sys.modules; assert 'pyspark_outbox' in {info.name for info in iter_modules()};"
            "from airflow_outbox.spark.py_files import packed; from pathlib import Path; import zipfile;"
            f"packed_names = zipfile.ZipFile(packed(Path({str(tmp_path)!r}))).namelist();"
            "assert packed_names.count('pyspark_outbox.py') == 1;"
            "print(pyspark_outbox.__file__, pyspark_outbox.DefaultSource.name())"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / folder), str(ROOT)])}
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/")
        assert found.stdout.split() == [str(tmp_path / folder / "pyspark_outbox.py"), "outbox"], found.stderr


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    info = f"airflow_outbox-{PROJECT['version']}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\n## What it promises\n" in metadata
    assert re.findall(r"\]\((?!https://)", metadata) == [], "an index would show broken links"
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()


def test_the_project_asks_for_ranges() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        assert requirement.url is None
        assert "==" not in str(requirement.specifier), requirement


def test_airflow_2_is_not_enough() -> None:
    [airflow] = [line for line in map(Requirement, PROJECT["dependencies"]) if line.name == "apache-airflow"]
    assert not airflow.specifier.contains("2.11.0")
    assert airflow.specifier.contains("3.3.2")


def test_the_pins_satisfy_every_requirement(pins: dict[str, str]) -> None:
    needed = requirements({"browser", "demo", "dev"})
    assert needed.keys() - pins.keys() == set()
    assert {
        name: pins[name] for name, range_ in needed.items() if not range_.contains(pins[name], prereleases=True)
    } == {}


def test_the_environment_has_the_pinned_versions(pins: dict[str, str]) -> None:
    installed = {name: version(name) for name in requirements({"browser", "demo", "dev"})}
    assert {name: found for name, found in installed.items() if Version(found) != Version(pins[name])} == {}


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_the_pins_fit_every_python_that_is_promised(python: str, pins: dict[str, str]) -> None:
    unfit = []
    for name in requirements({"browser", "demo", "dev"}):
        allowed = distribution(name).metadata.get("Requires-Python")
        if allowed is not None and not SpecifierSet(allowed).contains(python):
            unfit.append(f"{name} {pins[name]} needs Python {allowed}")
    assert unfit == []


def test_the_imported_pyspark_is_the_full_one(pins: dict[str, str]) -> None:
    import pyspark

    assert pins["pyspark"] == pins["pyspark-client"], "they write into the same folder"
    assert pyspark.__version__ == pins["pyspark"]
    jars = Path(pyspark.__file__).parent / "jars"
    assert list(jars.glob("spark-core_2.13-*.jar"))
    assert list(jars.glob("scala-library-2.13*.jar"))
