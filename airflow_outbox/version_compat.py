"""Make sure that this is Airflow 3, or refuse and say so; and bridge the differences between its versions."""

from __future__ import annotations

import asyncio
import re
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


def resolves_connections_in_the_api_server() -> bool:
    """Whether this is Airflow 3.1.1 or newer: before, nothing in the API server finds the connections' secrets."""
    return _is_at_least(3, 1, 1)


def takes_commands_of_providers() -> bool:
    """Whether this is Airflow 3.2 or newer: a provider's description may name commands for `airflow …`."""
    return _is_at_least(3, 2)


def keeps_addresses_within_frames() -> bool:
    """Whether this is Airflow 3.3.2 or newer: an address of a page within a plugin's frame opens that page."""
    return _is_at_least(3, 3, 2)


def metrics() -> Any:
    """An object with `incr` and `gauge` with tags in the installed Airflow.

    It is the one that a triggerer sets up. Airflow's SDK has another one, which only workers set up.
    """
    try:
        return import_module("airflow.observability.stats").Stats
    except ImportError:  # before 3.2
        return import_module("airflow.stats").Stats


async def set_xcom(**xcom: Any) -> None:
    """Set an XCom from a trigger: `key`, `value`, and the task's `dag_id`, `task_id`, `run_id`, `map_index`."""
    from airflow.providers.common.compat.sdk import XCom

    if hasattr(XCom, "aset"):
        await XCom.aset(**xcom)
    else:  # before 3.3
        await asyncio.to_thread(XCom.set, **xcom)


def _is_at_least(*wanted: int) -> bool:
    numbers = re.findall(r"\d+", _airflow_version() or "0")[: len(wanted)]
    return tuple(map(int, numbers)) >= wanted


def _airflow_version() -> str | None:
    for distribution in _DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None
