"""Archives of the Java classes that Kafka and Spark load. With them both start in half the processor time.

`python -m airflow_outbox.demo.embedded.class_archives .dev/jars` makes those that are missing (about 30 s). A Java that
can't use an archive, because it or the jars are others than those that made it, starts without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_outbox.demo.embedded.java import find_java, java_home

_START_KAFKA = """
import sys
from pathlib import Path
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1]), classpath=sys.argv[2]):
    pass
"""
_START_SPARK = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = session.createDataFrame([(1, "a"), (2, "b")], "id int, name string")
frame.groupBy("name").count().orderBy("name").collect()
session.stop()
"""


def kafka_archive(classpath: str) -> Path:
    """Where Kafka's archive for this classpath is: beside the folder with its jars, and named after it."""
    jars = Path(classpath.partition(os.pathsep)[0]).parent
    return jars.with_name(f"{jars.name}.jsa")


def java_options(archive: Path) -> list[str]:
    """Return the options that let Java use an archive; none where it is missing."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []


def make_archives(classpath: str, folder: Path) -> None:
    """Make the archives that are missing: Kafka's for this classpath, and `spark.jsa` in a folder."""
    _archive(kafka_archive(classpath), _START_KAFKA, classpath)
    _archive(folder.resolve() / "spark.jsa", _START_SPARK)


def _archive(archive: Path, program: str, *arguments: str) -> None:
    """Run a Python program whose Java writes what it has loaded into an archive when it ends."""
    if archive.exists():
        return
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        options = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} -XX:ArchiveClassesAtExit="{made}"'
        home = str(java_home(find_java()))
        environment = {"JAVA_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": options}
        ended = subprocess.run(
            [sys.executable, "-c", program, *([f"{folder}/server"] if arguments else []), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={**os.environ, **environment},
        )
        if ended.returncode == 0 and made.exists():
            made.replace(archive)


if __name__ == "__main__":
    from airflow_outbox.demo.embedded.jars import kafka_jars

    jars = Path(sys.argv[1])
    make_archives(kafka_jars(jars), jars)
