"""Where Kafka's archive of classes is looked for, and that Java starts without one it can't use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from airflow_outbox.demo.embedded.class_archives import java_options, kafka_archive
from airflow_outbox.demo.embedded.java import find_java


def test_kafkas_archive_is_beside_its_jars_and_has_their_version(tmp_path: Path) -> None:
    classpath = os.pathsep.join([f"{tmp_path}/kafka-4.1.0/*", "/elsewhere/scala-library.jar"])
    assert kafka_archive(classpath) == tmp_path / "kafka-4.1.0.jsa"


def test_java_starts_without_an_archive_that_it_cant_use(tmp_path: Path) -> None:
    archive = tmp_path / "a space" / "classes.jsa"
    assert java_options(archive) == []
    archive.parent.mkdir()
    archive.write_text("of another Java")
    command = [str(find_java()), *java_options(archive), "-version"]
    assert len(command) > 2
    started = subprocess.run(command, capture_output=True, text=True)
    assert (started.returncode, started.stdout) == (0, "")
    assert "version" in started.stderr
