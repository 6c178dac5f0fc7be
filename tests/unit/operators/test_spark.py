"""How OutboxSparkSubmitOperator submits, before anything runs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException, AirflowOptionalProviderFeatureException
from support.tracing import Traces

from airflow_outbox import __version__
from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.spark import settings
from airflow_outbox.spark.py_files import packed
from airflow_outbox.values.trace_context import trace_headers

RUN: Any = {"ti": SimpleNamespace(dag_id="shop", task_id="orders", run_id="manual__1", map_index=-1)}


@pytest.fixture(autouse=True)
def spark_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = {"local": "local[2]", "standalone": "spark://master:7077"}
    for name, host in spark.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "spark", "host": host}))
    cluster = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(cluster))
    shop = {"conn_type": "postgres", "host": "127.0.0.1", "login": "job", "password": "secret"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps(shop))


def operator(**arguments: Any) -> OutboxSparkSubmitOperator:
    return OutboxSparkSubmitOperator(task_id="orders", postgres_conn_id="shop_db", application="job.py", **arguments)


def test_a_missing_spark_connection_is_an_error_and_not_yarn() -> None:
    with pytest.raises(AirflowNotFoundException, match="nowhere"):
        operator(conn_id="nowhere").execute(RUN)


def test_a_driver_elsewhere_needs_a_file_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"deploy mode cluster: .* spark\.airflowOutbox\.dataSourceFile"):
        operator(conn_id="cluster").execute(RUN)


def test_spark_submit_is_found_in_pyspark_when_it_is_not_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Path(operator(conn_id="local")._get_hook()._connection["spark_binary"])
    assert found.name == "spark-submit"
    assert found.parent.parent.name == "pyspark"
    own = tmp_path / "spark-submit"
    own.touch(mode=0o755)
    assert operator(conn_id="local")._get_hook()._connection["spark_binary"] == "spark-submit"


def test_the_driver_gets_nothing_of_airflows_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command, seen = tmp_path / "spark-submit", tmp_path / "seen"
    command.write_text(f"#!/bin/sh\nenv > {seen}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:secret@db/airflow")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://shop:secret@db/shop")
    submitting = operator(conn_id="local", env_vars={"MODE": "full", "AIRFLOW_VAR_MODE": "full"})
    with pytest.raises(PostgresError):  # it has committed nothing
        submitting.execute(RUN)
    submitting._hook._submit_sp.stdout.close()  # type: ignore[union-attr]
    environment = seen.read_text().splitlines()
    assert "secret" not in seen.read_text()
    assert [line for line in environment if line.startswith(("AIRFLOW", "MODE"))] in (
        ["AIRFLOW_VAR_MODE=full", "MODE=full"],
        ["MODE=full", "AIRFLOW_VAR_MODE=full"],
    )


@pytest.mark.parametrize("tracing", [False, True])
def test_a_task_that_traces_passes_its_context_to_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, traces: Traces, tracing: bool
) -> None:
    command, seen = tmp_path / "spark-submit", tmp_path / "seen"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    submitting = operator(conn_id="local", tracing=tracing)
    with traces.tracer.start_as_current_span("task"):
        expected = f"{settings.TRACEPARENT}={trace_headers()['traceparent']}"
        with pytest.raises(PostgresError):  # it has committed nothing
            submitting.execute(RUN)
    submitting._hook._submit_sp.stdout.close()  # type: ignore[union-attr]
    passed = [line for line in seen.read_text().splitlines() if line.startswith("spark.airflowOutbox.trace")]
    assert passed == ([expected] if tracing else [])


def test_a_local_master_runs_the_job_under_this_python_unless_told_otherwise() -> None:
    def python(**arguments: Any) -> Any:
        return operator(**arguments)._get_hook()._conf.get("spark.pyspark.python")

    assert python(conn_id="local") == sys.executable
    assert python(conn_id="local", conf={"spark.pyspark.python": "/opt/python"}) == "/opt/python"
    assert python(conn_id="standalone") is None


def test_the_package_is_sent_to_executors_elsewhere(tmp_path: Path) -> None:
    def sent(**arguments: Any) -> list[str]:
        submitting = operator(**arguments)
        submitting._package_folder = tmp_path
        return [Path(file).name for file in (submitting._get_hook()._py_files or "").split(",") if file]

    package = f"airflow_outbox-{__version__}.zip"
    assert sent(conn_id="standalone") == [package]
    assert sent(conn_id="standalone", py_files="more.py") == ["more.py", package]
    assert sent(conn_id="standalone", ship_package=False) == []
    assert sent(conn_id="local") == []


def test_the_package_works_from_its_zip_without_airflow(tmp_path: Path) -> None:
    path = packed(tmp_path)
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        f"sys.path.insert(0, {str(path)!r})\n"
        "import pyspark_outbox, airflow_outbox.audit.spark_job\n"
        "from airflow_outbox.sql import statements\n"
        "assert statements('spark')\n"
        "print(pyspark_outbox.__file__, pyspark_outbox.DefaultSource.name())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout.split() == [f"{path}/pyspark_outbox.py", "outbox"]


def test_a_dag_that_submits_is_read_without_loading_spark() -> None:
    code = "import airflow_outbox.operators.spark, sys; print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_outbox_and_version_can_be_templates() -> None:
    assert {"postgres_conn_id", "outbox", "version", "application_args"} <= set(operator().template_fields)


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "airflow_outbox.operators.spark")
    monkeypatch.setitem(
        sys.modules, "airflow.providers.apache.spark.operators.spark_submit", None
    )  # not to be imported
    with pytest.raises(AirflowOptionalProviderFeatureException, match=r"pip install 'airflow-outbox\[spark\]'"):
        importlib.import_module("airflow_outbox.operators.spark")
