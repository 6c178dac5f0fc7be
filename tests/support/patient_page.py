"""Lets the page in a test's API server wait for Postgres and Kafka as long as a busy machine needs.

`ApiServer` puts this file among the plugins of its Airflow. A database that does not answer at all is still found out,
some seconds later than elsewhere.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from airflow_outbox.ui import plugin

_REACHED_WITHIN = 12.0
_ANSWERED_WITHIN = 30.0
_MADE_WITHIN = 120.0
_SILENT_FOR = 15.0
_CUT_AFTER = 20.0


def _be_patient() -> None:
    from airflow_outbox.operate import clusters
    from airflow_outbox.ui import actions, cluster_actions, pages, query_pool

    slow: dict[Any, float] = {
        query_pool.QueryPool.ask: _ANSWERED_WITHIN,
        query_pool.QueryPool.ask_all: _ANSWERED_WITHIN,
        actions.Requests.make: _MADE_WITHIN,
        actions.made: _MADE_WITHIN,
    }
    for waits, seconds in slow.items():
        assert waits.__kwdefaults__.keys() == {"patience"}
        waits.__kwdefaults__["patience"] = seconds
    constants: dict[ModuleType, dict[str, float]] = {
        pages: {"_PATIENCE": _ANSWERED_WITHIN},
        query_pool: {
            "_CONNECT_SECONDS": int(_SILENT_FOR),
            "_STATEMENT_SECONDS": _SILENT_FOR,
            "_PATIENCE_WITH_A_QUESTION": _CUT_AFTER,
        },
        actions: {"_CONNECT_SECONDS": int(_SILENT_FOR)},
        cluster_actions: {"_PROMOTED_WITHIN": _MADE_WITHIN},
        clusters: {"_REACHED_WITHIN": _REACHED_WITHIN},
    }
    for module, values in constants.items():
        for name, value in values.items():
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, value)


def _imported(name: str) -> ModuleType:
    """The page, which the plugin imports at its first request."""
    module = import_module(name)
    _be_patient()
    return module


plugin.import_module = _imported  # type: ignore[attr-defined]
