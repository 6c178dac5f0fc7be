"""This package as one file that Spark can send along with a job."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from airflow_outbox import __version__

_FOR_SERVERS_ONLY = frozenset({"demo", "__pycache__"})
_FOUND_BY_SPARK = "pyspark_outbox.py"


def packed(folder: Path) -> Path:
    """Write a zip of this package into a folder, as Python imports it and `--py-files` takes it.

    It has no other packages in it: psycopg and pyarrow have to be where it is used.
    """
    path = folder / f"airflow_outbox-{__version__}.zip"
    package = files("airflow_outbox")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, package, "airflow_outbox")
        archive.writestr(_FOUND_BY_SPARK, package.joinpath("spark", _FOUND_BY_SPARK).read_bytes())
    return path


def _add(archive: zipfile.ZipFile, source: Traversable, name: str) -> None:
    for entry in source.iterdir():
        if entry.name in _FOR_SERVERS_ONLY:
            continue
        if entry.is_dir():
            _add(archive, entry, f"{name}/{entry.name}")
        else:
            archive.writestr(f"{name}/{entry.name}", entry.read_bytes())
