"""The jobs of the page on Spark, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "spark.md").read_text("utf-8")
TITLED = dict(re.findall(r"^```python title=\"(\w+\.py)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def shop(
    database: str, postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """The set-up that the page takes for granted, and its files."""
    for name, text in TITLED.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        [table] = re.findall(r"`(CREATE TABLE [^`]+)`", PAGE)
        connection.execute(table.encode())
        shop_db = {"conn_type": "postgres", "host": "127.0.0.1", "port": postgres.port, "login": "postgres"}
        shop_db["password"] = postgres.superuser_password
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps({**shop_db, "schema": connection.info.dbname}))
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
        monkeypatch.setenv("JAVA_HOME", str(java_home(find_java())))
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        yield connection


@pytest.fixture
def airflow(shop: psycopg.Connection[Any], tmp_path: Path) -> Callable[..., str]:
    """Runs a command of an Airflow of this test's own; its output."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    }

    def run(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        ran = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    run("db", "migrate")
    return run


@pytest.mark.long
def test_the_jobs_of_the_page_under_airflow(
    airflow: Callable[..., str], shop: psycopg.Connection[Any], tmp_path: Path
) -> None:
    assert "state=success" in airflow("dags", "test", "orders", "--dagfile-path", str(tmp_path / "orders.py"))
    assert shop.execute("SELECT * FROM orders ORDER BY order_id").fetchall() == [
        (1, "ada", "paid"),
        (2, "bob", "placed"),
    ]
    stashed = shop.execute("SELECT kafka_topic, kafka_key, kafka_value::json->>'state' FROM outbox ORDER BY id")
    assert stashed.fetchall() == [("orders", "1", "placed"), ("orders", "2", "placed"), ("orders", "1", "paid")]

    shop.execute("DELETE FROM outbox")
    airflow("dags", "test", "orders_in_task", "--dagfile-path", str(tmp_path / "orders_task.py"))
    assert shop.execute("SELECT kafka_key FROM outbox ORDER BY id").fetchall() == [("0",), ("1",), ("2",)]
    committed = [app_id for (app_id,) in shop.execute("SELECT app_id FROM outbox_commits ORDER BY committed_at")]
    assert [app_id.split("/")[:2] + app_id.split("/")[3:] for app_id in committed] == [
        ["airflow", "orders", "write_orders", "-1"],
        ["airflow", "orders_in_task", "write_orders", "-1"],
    ]
