"""The application as a whole: all routes carry checks, and nothing comes from elsewhere."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from airflow_outbox.ui import access, airflow, app
from airflow_outbox.ui.outboxes import Found, OutboxKey, TaskRole, Use

ASSETS = files("airflow_outbox.ui").joinpath("assets")
TEMPLATES = files("airflow_outbox.ui").joinpath("templates")
NAMESPACE = "http://www.w3.org/2000/svg"


def test_it_is_built_because_every_route_carries_a_check() -> None:
    assert app.make_app() is not None


def test_it_is_not_built_with_a_route_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.add_api_route("/open", lambda: "anybody")
    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))
    with pytest.raises(TypeError, match="no access check"):
        app.make_app()


SHOWN = sorted(route.path for router in app.ROUTERS for route in router.routes if "GET" in route.methods)  # type: ignore[attr-defined]
PARAMETERS = {"outbox": "pg:outbox", "dag_id": "a", "task_id": "t", "number": "1", "cluster": "backup"}


@pytest.mark.parametrize("path", SHOWN)
def test_a_page_asks_about_rights_in_threads_and_needs_no_database(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An auth manager may ask a database, which must not hold up Airflow's API."""
    key, asked_on_the_loop = OutboxKey("pg", "outbox"), []

    def allowed(*_: object) -> bool:
        asked_on_the_loop.append(asyncio._get_running_loop() is not None)
        return True

    monkeypatch.setattr(access.finder, "find", lambda: Found({key: (Use("a", "t", TaskRole.HARVESTS, key),)}))
    for right in ("sees_plugins", "may_read_dag", "may_edit_dags", "may_edit_connection", "shows_values_to_readers"):
        monkeypatch.setattr(airflow, right, allowed)
    whole = app.make_app()
    whole._app.dependency_overrides[airflow.get_user] = lambda: None
    what = "detach" if "cluster" in path else "retry"
    answer = TestClient(whole).get(path.format(file="outbox.css"), params={**PARAMETERS, "what": what})
    assert answer.status_code == (503 if path.startswith("/ask") else 200)  # a dialog can't say what it would do
    assert not any(asked_on_the_loop)


def test_no_get_changes_anything_by_its_name() -> None:
    """Actions are posted."""
    for router in app.ROUTERS:
        for route in router.routes:
            acts = route.path.startswith("/act/")  # type: ignore[attr-defined]
            assert ("GET" in route.methods) is not acts  # type: ignore[attr-defined]


def test_there_is_one_short_script() -> None:
    [script] = [each for each in ASSETS.iterdir() if each.name.endswith(".js")]
    assert len(script.read_text("utf-8").splitlines()) <= 150


def test_nothing_comes_from_elsewhere() -> None:
    for file in [*ASSETS.iterdir(), *TEMPLATES.iterdir()]:
        text = file.read_text("utf-8").replace(NAMESPACE, "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|url\(", text), file.name


def test_templates_mark_nothing_as_safe() -> None:
    for file in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe|autoescape|style=|\son\w+=", file.read_text("utf-8")), file.name
