"""Kafka's jars, and others, fetched once by the package resolver that Spark brings along."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.errors import OutboxError

KAFKA_VERSION = "4.1.0"
_PACKAGES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",  # without it the broker logs nothing
)
_NEEDED = ("kafka_2.13", "kafka-clients", "log4j-slf4j-impl")
_RESOLVE = """
import sys
from pyspark.sql import SparkSession
settings = {"spark.jars.packages": sys.argv[1], "spark.jars.ivy": sys.argv[2], "spark.ui.enabled": "false"}
SparkSession.builder.master("local[1]").config(map=settings).getOrCreate().stop()
"""


class JarsMissingError(OutboxError):
    """Jars could not be fetched. Check the network and try again: what has arrived is kept."""


def kafka_jars(cache: Path) -> str:
    """Return the class path of Kafka's broker and tools; fetch missing jars into `cache` (about 20 s).

    Raises `JavaMissingError`, or `JarsMissingError` with what the resolver said.
    """
    complete = fetched_jars(cache, f"kafka-{KAFKA_VERSION}", _PACKAGES, needed=_NEEDED)
    return os.pathsep.join([f"{complete}/*", str(_spark_jar("scala-library"))])


def fetched_jars(cache: Path, name: str, packages: Sequence[str], *, needed: Sequence[str]) -> Path:
    """Return the folder `name` in `cache` with the jars of packages (`group:artifact:version`) and their dependencies.

    It is made when it is missing. `needed` names artifacts: a folder that lacks one counts as missing. An interrupted
    fetch is continued. Processes that ask at the same time wait for one another.

    Raises `JavaMissingError`, or `JarsMissingError` with what the resolver said.
    """
    complete = cache.resolve() / name
    if not complete.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                _fetch(cache.resolve() / "ivy", complete, packages, needed)
    return complete


def _fetch(ivy: Path, complete: Path, packages: Sequence[str], needed: Sequence[str]) -> None:
    """Fetch the jars. The folder gets its name only when all are in it, so the name says that it is complete."""
    # A process of its own, so that its Java ends with it.
    resolution = subprocess.run(
        [sys.executable, "-c", _RESOLVE, ",".join(packages), str(ivy)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env={**os.environ, "JAVA_HOME": str(java_home(find_java())), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    jars = ivy / "jars"
    if resolution.returncode != 0 or any(not list(jars.glob(f"*_{name}-*.jar")) for name in needed):
        raise JarsMissingError(f"{JarsMissingError.__doc__} The resolver said:\n{resolution.stdout.strip()[-4000:]}")
    jars.rename(complete)


def _spark_jar(artifact: str) -> Path:
    """Return a jar of Spark's own: Spark's resolver leaves out what Spark has itself."""
    folder = Path(pyspark.__file__).parent / "jars"
    found = sorted(folder.glob(f"{artifact}-2.13*.jar"))
    if not found:
        raise JarsMissingError(
            f"{artifact} is not in {folder}: the imported pyspark is not the full one. "
            "Install `pyspark` after `pyspark-client`, in the same version."
        )
    return found[-1]


if __name__ == "__main__":
    try:
        print(kafka_jars(Path(sys.argv[1])))
    except OutboxError as error:
        sys.exit(str(error))
