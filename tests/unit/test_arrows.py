"""The house: which room may import which, and what a small process may never load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.parsing import parsed

import airflow_outbox

PACKAGE = Path(airflow_outbox.__file__).parent
AIRFLOW_CLI = {"airflow_cli"}
AIRFLOW_ROOMS = {
    *("asset_listener", "assets", "hooks", "links", "triggers", "sensors", "operators"),
    *("provider_info", "version_compat"),
}
PAGE = {"ui"}
SPARK_ROOMS = {"spark"}
SPARK_JOB = PACKAGE / "audit" / "spark_job.py"
TRACING = {PACKAGE / name for name in ("values/trace_context.py", "harvest/spans.py", "harvest/tracing.py")}
# Rooms from the outside in: each may import only from rooms behind it, and from its own.
LAYERS = [
    {"demo"},
    AIRFLOW_CLI,
    {"cli"},
    PAGE,
    AIRFLOW_ROOMS,
    {"spark"},
    {"debezium"},
    {"audit", "operate"},
    {"positions"},
    {"harvest"},
    {"tickets"},
    {"stash"},
    {"postgres"},
    {"sql", "values"},
    {"errors"},
]


def modules() -> Iterator[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            yield room, path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(room: str) -> int:
    places = [place for place, rooms in enumerate(LAYERS) if room in rooms]
    assert places, f"{room} is a new room: give it a place in LAYERS"
    return places[0]


def test_an_arrow_goes_only_inwards() -> None:
    for room, path in modules():
        for name in imports(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "airflow_outbox" and other not in {room, "__version__"}:
                assert layer(room) <= layer(other), f"{path.relative_to(PACKAGE)} imports {name}"


def test_only_airflows_rooms_import_airflow_and_only_sparks_import_pyspark() -> None:
    for room, path in modules():
        roots = {name.split(".")[0] for name in imports(path)}
        assert "airflow" not in roots or room in AIRFLOW_ROOMS | AIRFLOW_CLI | PAGE, path
        assert "pyspark" not in roots or room in SPARK_ROOMS | {"demo"} or path == SPARK_JOB, path


def test_one_module_of_the_page_knows_airflow() -> None:
    importing = {
        path.name
        for path in (PACKAGE / "ui").glob("*.py")
        if "airflow" in {name.split(".")[0] for name in imports(path)}
    }
    assert importing == {"airflow.py", "plugin.py"}


def test_only_what_traces_imports_opentelemetry() -> None:
    importing = {path for _, path in modules() if "opentelemetry" in {name.split(".")[0] for name in imports(path)}}
    assert importing == TRACING


def test_decisions_import_values_and_errors_only() -> None:
    inner = ("airflow_outbox.harvest.protocol.", "airflow_outbox.values.", "airflow_outbox.errors.")
    for path in (PACKAGE / "harvest" / "protocol").glob("*.py"):
        assert [
            name for name in imports(path) if name.startswith("airflow_outbox") and not name.startswith(inner)
        ] == []


def test_decisions_do_no_io() -> None:
    allowed = {
        "__future__",
        "airflow_outbox",
        "collections",
        "contextlib",
        "dataclasses",
        "enum",
        "functools",
        "json",
        "operator",
        "typing",
        "uuid",
    }
    for path in (PACKAGE / "harvest" / "protocol").glob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path


@pytest.mark.parametrize(
    "module",
    [
        "airflow_outbox",
        "airflow_outbox.harvest.__main__",
        "airflow_outbox.cli",
        "airflow_outbox.operate.check",
        "airflow_outbox.spark.options",
        "airflow_outbox.values.trace_context",
    ],
)
def test_neither_airflow_nor_spark_nor_opentelemetry_is_loaded(module: str) -> None:
    unwanted = {"airflow", "asyncpg", "django", "opentelemetry", "pyspark", "sqlalchemy"}
    code = f"import {module}, sys; print(sorted({unwanted} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
    )
