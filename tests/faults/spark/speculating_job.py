"""A driver on the cluster: a write whose first attempts go wrong in the way that is asked for."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from integration.spark.breaking import register_breaking
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def is_first_of_one() -> bool:
    context = TaskContext.get()
    return context is not None and context.partitionId() == 3 and context.attemptNumber() == 0


def linger() -> None:
    """All is staged for good, but nobody hears of it for long: another attempt is started meanwhile, and wins."""
    if is_first_of_one():
        time.sleep(60)


def end_executor() -> None:
    """The process above the daemon that this worker was forked from is the executor."""
    if is_first_of_one():
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(daemon), signal.SIGKILL)


def can_import_airflow(_: int) -> bool:
    try:
        import airflow  # noqa: F401
    except ImportError:
        return False
    return True


FAULTS = {"speculation": {"staged": linger}, "executor": {"amid_rows": end_executor}}


def main() -> None:
    given = json.loads(sys.argv[1])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": given["executor_path"],
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
    }
    spark = SparkSession.builder.master(given["master"]).config(map=settings).getOrCreate()
    register_breaking(spark, "breaking", **FAULTS[given["fault"]])
    number = F.col("id").cast("string")
    records = spark.range(0, given["records"], 1, 4).select(
        F.lit("orders").alias("topic"), number.alias("key"), number.alias("value"), F.col("id").alias("number")
    )
    options = {"url": given["url"], "txnAppId": "job", "orderBy": "number", "inlineBytes": "0"}
    records.write.format("breaking").options(**options, commitSql=given["commit_sql"]).mode("append").save()
    found = spark.sparkContext.range(4).map(can_import_airflow).collect()
    Path(given["report"]).write_text(json.dumps({"airflow": any([*found, can_import_airflow(0)])}))
    spark.stop()


if __name__ == "__main__":
    main()
