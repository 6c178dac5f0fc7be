"""How fast a Spark job fills the outbox, beside `psql`'s COPY, which is the limit, and Spark's own JDBC writer.

All write the same rows into the same table with the same indexes, on the same server, in turns: `--rounds` times each,
with the table emptied before each. The rows come from Parquet files, ready and in the page cache; `psql` reads a text
file. The whole write is measured, as a job waits for it.

JDBC promises less: rows appear as they are sent, not in one transaction, in no order, and twice when a task is tried
again. Spark runs in local mode with two tasks at once; `peak_mib` is the memory that its JVM and all its Python
processes held together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.spark import register
from benchmarks.peers.surroundings import surroundings

ROOT = Path(__file__).resolve().parents[1]
JDBC_DRIVER = "org.postgresql:postgresql:42.7.4"
KEYS = 10_000
PARTITIONS = 4
PSQL = "psql copy"
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB"}
COLUMNS = "kafka_topic, kafka_key, kafka_value"


def say(text: str) -> None:
    print(f"bench spark: {text}", file=sys.stderr, flush=True)


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """The peak memory of this process and its descendants (Spark's JVM and Python workers) together, in MiB."""
    found = {"mib": 0.0}
    ended = threading.Event()
    own = psutil.Process()

    def look() -> None:
        while not ended.wait(0.1):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    name = process.name()
                    if name == "java" or name.startswith("python"):
                        total += process.memory_info().rss
                except psutil.Error:
                    continue
            found["mib"] = max(found["mib"], total / 2**20)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


class Bench:
    """The server, the session and the rows."""

    def __init__(self, folder: Path, server: EmbeddedPostgres, spark: SparkSession, rows: int) -> None:
        self.rows = rows
        self.server = server
        self.url = server.dsn()
        self.text = folder / f"{rows}.copy"
        place = str(folder / f"{rows}.parquet")
        say(f"making {rows:,} rows")
        number = F.col("id")
        spark.range(0, rows, 1, PARTITIONS).select(
            F.lit("orders").alias("topic"),
            F.concat(F.lit("customer-"), number % KEYS).alias("key"),
            F.concat(F.lit('{"id":'), number, F.lit(',"state":"' + "x" * 66 + '"}')).alias("value"),
            F.xxhash64(number).alias("random"),
        ).write.parquet(place)
        self.frame = spark.read.parquet(place)
        self.connection = psycopg.connect(self.url, autocommit=True)

    def make_text(self) -> None:
        """Make psql's input: the same rows, as the first write has left them in the outbox."""
        self._psql(f"\\copy (SELECT {COLUMNS} FROM outbox ORDER BY id) TO '{self.text}'")

    def _psql(self, command: str) -> None:
        subprocess.run([self.server.programs / "psql", self.url, "-qXc", command], check=True)

    def psql(self) -> None:
        self._psql(f"\\copy outbox ({COLUMNS}) FROM '{self.text}'")

    def outbox(self, **options: str) -> None:
        self.frame.write.format("outbox").options(url=self.url, **options).mode("append").save()

    def ordered(self) -> None:
        """Write ordered by a column that has nothing to do with the order in which the rows lie."""
        self.outbox(orderBy="random")

    def jdbc(self) -> None:
        columns = zip(("topic", "key", "value"), COLUMNS.split(", "), strict=True)
        renamed = self.frame.select(*(F.col(name).alias(column) for name, column in columns))
        options = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.server.port}/postgres?user=postgres&reWriteBatchedInserts=true",
            "password": self.server.superuser_password,
            "dbtable": "outbox",
            "driver": "org.postgresql.Driver",
            "batchsize": "10000",
        }
        renamed.write.format("jdbc").options(**options).mode("append").save()

    def timed(self, write: Callable[[], None]) -> tuple[float, float]:
        """Time a write into the empty outbox, in seconds, with its peak memory in MiB. Raises SystemExit."""
        self.connection.execute("TRUNCATE outbox")
        self.connection.execute("CHECKPOINT")
        with peak_memory() as memory:
            started = time.perf_counter()
            write()
            seconds = time.perf_counter() - started
        row = self.connection.execute("SELECT count(*) FROM outbox").fetchone()
        if row != (self.rows,):
            raise SystemExit(f"of {self.rows} rows {row} have arrived")
        return seconds, memory["mib"]


def run(bench: Bench, *, rounds: int, with_jdbc: bool) -> list[dict[str, Any]]:
    paths: dict[str, Callable[[], None]] = {"outbox": bench.outbox, "outbox, orderBy": bench.ordered}
    say("warming up")
    bench.timed(bench.outbox)
    bench.make_text()
    if with_jdbc:
        paths["jdbc, reWriteBatchedInserts"] = bench.jdbc
    paths = {PSQL: bench.psql, **paths}
    taken: dict[str, list[tuple[float, float]]] = {path: [] for path in paths}
    for number in range(rounds):
        for path, write in paths.items():
            taken[path].append(bench.timed(write))
            say(f"round {number + 1}: {path}: {taken[path][-1][0]:.2f} s")
    limit = statistics.median(seconds for seconds, _ in taken[PSQL])
    results = []
    for path, times in taken.items():
        found = [seconds for seconds, _ in times]
        seconds = statistics.median(found)
        results.append(
            {
                "benchmark": "spark",
                "path": path,
                "rows": bench.rows,
                "rounds": rounds,
                "seconds": round(seconds, 3),
                "rows_per_second": round(bench.rows / seconds),
                "lowest": round(bench.rows / max(found)),
                "highest": round(bench.rows / min(found)),
                "of_psql_copy": round(limit / seconds, 3),
                "peak_mib": None if path == PSQL else round(max(mib for _, mib in times)),
            }
        )
    return results


def main() -> None:
    arguments = argparse.ArgumentParser(prog="./dev bench spark", description=__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[1_000_000], help="how many (default: 1000000)")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each (default: 3)")
    arguments.add_argument("--no-jdbc", action="store_true", help="leave out JDBC, whose driver has to be fetched")
    given = arguments.parse_args()

    os.environ |= {
        "JAVA_HOME": str(java_home(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.files.maxPartitionBytes": "64m"}
    if not given.no_jdbc:
        settings |= {"spark.jars.packages": JDBC_DRIVER, "spark.jars.ivy": str(ROOT / ".dev" / "jars" / "ivy")}
    with tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        spark = SparkSession.builder.master("local[2]").config(map={**settings}).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        with EmbeddedPostgres(folder / "postgres", settings=SETTINGS) as server:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                init_outbox(connection, OutboxName.parse("outbox"))
            on = {"benchmark": "spark", "surroundings": surroundings(server.dsn()), "spark": pyspark.__version__}
            print(json.dumps(on), flush=True)
            for rows in given.rows:
                for result in run(Bench(folder, server, spark, rows), rounds=given.rounds, with_jdbc=not given.no_jdbc):
                    print(json.dumps(result), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
