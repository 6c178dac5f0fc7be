"""The audit as a Spark job says what the command says of the same data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import psycopg
import pyspark
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from support.archiving import Archived, counts

from airflow_outbox import OutboxRecord
from airflow_outbox.audit import spark_job
from airflow_outbox.audit.findings import AuditReport
from airflow_outbox.audit.run import AuditRequest
from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements

PASSWORD = "correct-horse-battery-staple"
SUBMIT = [
    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    "--master",
    "local[2]",
    "--conf",
    "spark.ui.enabled=false",
]


def audited(spark: SparkSession, archived: Archived, **wanted: int) -> AuditReport:
    config = HarvestConfig.from_yaml(archived.file)
    return spark_job.audit_on_spark(spark, config, AuditRequest(table="archive", **wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_it_agrees_with_the_command(
    spark: SparkSession, archived: Archived, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(spark_job, "_RECORDS_A_TASK", 150)  # so that there are several tasks
    drawn = random.Random(seed)
    records = [archived.record(number, key=f"k{drawn.randrange(40)}") for number in range(400)]
    records += [archived.record(0, key=f"k{drawn.randrange(3)}", partition=drawn.choice([None, 1])) for _ in range(9)]
    for first in range(0, len(records), 5):
        archived.stash(*records[first : first + 5])
    archived.execute("DELETE FROM outbox WHERE id < 390")
    seen = [record for record in records[:395] if drawn.random() > 0.03]
    for place in range(0, len(seen) - 1, 50):
        seen[place], seen[place + 1] = seen[place + 1], seen[place]
    seen += drawn.sample(seen, 7)
    seen += [OutboxRecord(archived.topic, "k1", f"stranger {number}") for number in range(4)]
    archived.publish(seen)
    archived.publish([record for record in records[395:] if record.partition == 1], partition=1)

    said = archived.audit("--examples", "3", status=1)
    assert set(counts(said)) >= {"missing", "doubled", "torn", "foreign", "waiting"}
    assert audited(spark, archived, examples=3).as_dict() == said


def test_it_agrees_when_all_is_well_and_when_nothing_is_there(spark: SparkSession, archived: Archived) -> None:
    records = [archived.record(number) for number in range(20)]
    archived.stash(*records)
    archived.purge()
    assert audited(spark, archived).as_dict() == archived.audit(status=1)
    archived.publish(records)
    assert audited(spark, archived).as_dict() == archived.audit()


@pytest.mark.long
def test_a_submitted_audit_ends_as_the_command_does_and_shows_no_password(archived: Archived, tmp_path: Path) -> None:
    archived.stash(archived.record(1), archived.record(2))
    archived.purge()
    archived.publish([archived.record(1)])
    role = f"{make_conninfo(archived.outbox.database).split('dbname=')[1].split()[0]}_auditor"
    archived.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'; GRANT SELECT ON archive TO {role}")
    with psycopg.connect(archived.outbox.database, autocommit=True) as connection:
        for statement in grant_statements(connection, OutboxName.parse("outbox"), "look", role):
            connection.execute(statement.encode())
    data_source = make_conninfo(archived.outbox.database, user=role, password=PASSWORD)
    try:
        archived.file.write_text(yaml.safe_dump({**archived.outbox.settings, "data_source": data_source}))
        said = archived.audit(status=1)
        job = tmp_path / "audit.py"
        job.write_text("from airflow_outbox.audit.spark_job import main\n\nmain()\n")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home(find_java()))}
        submitted = subprocess.run(
            [*SUBMIT, str(job), "-f", str(archived.file), "--table", "archive", "--output", "json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        archived.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert submitted.returncode == 1, submitted.stderr
    assert json.loads(submitted.stdout.splitlines()[-1]) == said
    assert PASSWORD not in submitted.stdout + submitted.stderr


def test_the_job_has_the_options_of_the_command() -> None:
    shown = CliRunner().invoke(spark_job.main, ["--help"])
    assert shown.exit_code == 0
    assert "--ignore-header" in shown.output
