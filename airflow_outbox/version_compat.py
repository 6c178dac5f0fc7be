"""Make sure that this is Airflow 3, or refuse and say so; and bridge the differences between its versions."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_outbox.errors import UnsupportedAirflowError

_DISTRIBUTIONS = ("apache-airflow-core", "apache-airflow")  # Airflow 2 has only the second
_LEAST_MAJOR = 3


def require_airflow_3() -> None:
    """Raise UnsupportedAirflowError unless the installed Airflow is 3 or newer. Imports nothing of it."""
    found = _airflow_version()
    if found is None:
        raise UnsupportedAirflowError(f"Apache Airflow is not installed. {UnsupportedAirflowError.__doc__}")
    if int(found.split(".")[0]) < _LEAST_MAJOR:
        raise UnsupportedAirflowError(f"this is Apache Airflow {found}. {UnsupportedAirflowError.__doc__}")


def metrics() -> Any:
    """An object with `incr` and `gauge` with tags in the installed Airflow."""
    try:
        return import_module("airflow.sdk.observability.stats")
    except ImportError:  # before 3.3
        return import_module("airflow.stats").Stats


async def set_xcom(**xcom: Any) -> None:
    """Set an XCom from a trigger: `key`, `value`, and the task's `dag_id`, `task_id`, `run_id`, `map_index`."""
    from airflow.providers.common.compat.sdk import XCom

    if hasattr(XCom, "aset"):
        await XCom.aset(**xcom)
    else:  # before 3.3
        await asyncio.to_thread(XCom.set, **xcom)


def _airflow_version() -> str | None:
    for distribution in _DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None
