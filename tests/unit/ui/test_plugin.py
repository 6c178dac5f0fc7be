"""Where the page appears in Airflow, and where it does not."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from airflow_outbox import version_compat
from airflow_outbox.ui import plugin
from airflow_outbox.ui.plugin import views


@pytest.mark.parametrize("base", ["", "/a/base"])
def test_each_place_has_a_route_of_its_own_below_the_base_path(base: str) -> None:
    found = views(base, "dag, task_instance")
    assert [view["destination"] for view in found] == ["nav", "dag", "task_instance"]
    assert len({view["url_route"] for view in found}) == 3
    assert found[0]["href"] == f"{base}/outbox/"
    assert found[1]["href"] == base + "/outbox/dag?dag_id={DAG_ID}"
    assert all(view["icon"].startswith(f"{base}/outbox/asset/") for view in found)


@pytest.mark.parametrize(("tabs", "places"), [("", []), ("dag", ["dag"]), (" task_instance ,x", ["task_instance"])])
def test_tabs_are_as_configured(tabs: str, places: list[str]) -> None:
    assert [view["destination"] for view in views("", tabs)] == ["nav", *places]


@pytest.mark.parametrize(
    ("version", "there"),
    [
        ("3.0.6", False),
        ("3.1.0", False),
        ("3.1.1", True),
        ("3.1.8", True),
        ("3.2.0", True),
        ("3.3.2", True),
        ("3.4.0rc1", True),
    ],
)
def test_the_page_is_absent_where_connections_are_not_resolved(
    version: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(version_compat, "version", lambda distribution: version)
        found = importlib.reload(plugin).OutboxPlugin
        assert bool(found.fastapi_apps) is bool(found.external_views) is there
    importlib.reload(plugin)


def test_a_process_that_loads_the_plugin_does_not_load_the_page() -> None:
    code = (
        "import airflow_outbox.ui.plugin, sys;"
        "print(sorted({'fastapi.applications', 'confluent_kafka', 'airflow_outbox.ui.app'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == "[]"
