"""This package as one file that Spark can send along with a job."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from airflow_outbox import __version__
from airflow_outbox.errors import ConfigurationError

_FOR_SERVERS_ONLY = frozenset({"demo", "__pycache__"})
_FOUND_BY_SPARK = "pyspark_outbox"


def packed(folder: Path) -> Path:
    """Write a zip of this package into a folder, as Python imports it and `--py-files` takes it.

    It contains no other packages: psycopg, pyarrow and numpy must be installed where it is used.
    """
    path = folder / f"airflow_outbox-{__version__}.zip"
    package = files("airflow_outbox")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, package, "airflow_outbox")
        archive.writestr(f"{_FOUND_BY_SPARK}.py", _found_by_spark(package))
    return path


def _found_by_spark(package: Traversable) -> bytes:
    """The module for Spark: in a checkout it is in the package, when installed at the top level."""
    module = package.joinpath("spark", f"{_FOUND_BY_SPARK}.py")
    if module.is_file():
        return module.read_bytes()
    installed = find_spec(_FOUND_BY_SPARK)
    if installed is None or installed.origin is None:
        raise ConfigurationError("the module pyspark_outbox is missing. Reinstall airflow-outbox")
    return Path(installed.origin).read_bytes()


def _add(archive: zipfile.ZipFile, source: Traversable, name: str) -> None:
    for entry in source.iterdir():
        if entry.name in _FOR_SERVERS_ONLY:
            continue
        if entry.is_dir():
            _add(archive, entry, f"{name}/{entry.name}")
        else:
            archive.writestr(f"{name}/{entry.name}", entry.read_bytes())
