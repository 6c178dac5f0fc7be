"""The decisions about access, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from fastapi import APIRouter, Depends, FastAPI
from starlette.requests import Request

from airflow_outbox.ui import access, airflow
from airflow_outbox.ui.access import CHECKS, OUR_HEADER, Visitor, require_checks
from airflow_outbox.ui.outboxes import Found, OutboxKey, TaskRole, Use

KEY = OutboxKey("pg", "outbox")
OTHER = OutboxKey("pg", "other")
HARVESTED = Found(
    {
        KEY: (
            Use("a", "x", TaskRole.HARVESTS, KEY),
            Use("b", "x", TaskRole.HARVESTS, KEY),
            Use("c", "x", TaskRole.WRITES, KEY),
        ),
        OTHER: (Use("c", "x", TaskRole.WRITES, OTHER),),
    }
)


class Rights:
    """The answers of an auth manager about one user."""

    plugins = False
    readable: frozenset[str] = frozenset()
    editable: frozenset[str] = frozenset()
    connections: frozenset[str] = frozenset()


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch) -> Rights:
    given = Rights()
    monkeypatch.setattr(airflow, "sees_plugins", lambda user: given.plugins)
    monkeypatch.setattr(airflow, "may_read_dag", lambda user, dag_id: dag_id in given.readable)
    monkeypatch.setattr(airflow, "may_edit_dags", lambda user, dag_ids: set(dag_ids) <= given.editable)
    monkeypatch.setattr(airflow, "may_edit_connection", lambda user, conn_id: conn_id in given.connections)
    return given


def test_plugins_or_one_dag_let_somebody_read(rights: Rights) -> None:
    visitor = Visitor(None)
    assert not visitor.may_read(HARVESTED, KEY)
    rights.readable = frozenset({"b"})
    assert visitor.may_read(HARVESTED, KEY)
    assert not visitor.may_read(HARVESTED, OTHER)
    rights.plugins = True
    assert visitor.may_read(HARVESTED, OTHER)


def test_only_the_right_to_edit_every_harvesting_dag_lets_somebody_act(rights: Rights) -> None:
    visitor = Visitor(None)
    rights.editable, rights.connections = frozenset({"a", "c"}), frozenset({"pg"})
    assert not visitor.may_act(HARVESTED, KEY)
    rights.editable = frozenset({"a", "b"})
    assert visitor.may_act(HARVESTED, KEY)


def test_where_no_dag_harvests_the_connection_decides(rights: Rights) -> None:
    visitor = Visitor(None)
    rights.editable = frozenset({"a", "b", "c"})
    assert not visitor.may_act(HARVESTED, OTHER)
    rights.connections = frozenset({"pg"})
    assert visitor.may_act(HARVESTED, OTHER)


def test_values_are_for_those_who_act_unless_configured(rights: Rights, monkeypatch: pytest.MonkeyPatch) -> None:
    rights.plugins = True
    assert not Visitor(None).may_see_values(HARVESTED, KEY)
    monkeypatch.setattr(airflow, "shows_values_to_readers", lambda: True)
    assert Visitor(None).may_see_values(HARVESTED, KEY)


class FabAnswers:
    """FAB's manager, as it answered: nobody below op sees plugins; a Dag that is edited must be named and allowed."""

    PLUGINS = ("op", "admin")
    CONNECTIONS = ("op", "admin")

    def __init__(self, *, edits: Mapping[str, set[str]]) -> None:
        self._edits = edits

    def is_authorized_view(self, *, access_view: Any, user: Any) -> bool:
        return access_view.value == "PLUGINS" and user.role in self.PLUGINS

    def is_authorized_dag(self, *, method: str, user: Any, details: Any) -> bool:
        return method == "GET" or details.id in self._edits.get(user.role, set())

    def batch_is_authorized_dag(self, asked: Any, *, user: Any) -> bool:
        return all(self.is_authorized_dag(method=one["method"], user=user, details=one["details"]) for one in asked)

    def is_authorized_connection(self, *, method: str, user: Any, details: Any) -> bool:
        return method == "PUT" and user.role in self.CONNECTIONS


@dataclass(frozen=True, slots=True)
class Somebody:
    role: str

    def get_name(self) -> str:
        return self.role


def decisions(role: str, *uses: Use) -> tuple[bool, bool, bool]:
    """Whether somebody may read an outbox of such uses, act, and see values."""
    found, visitor = Found({KEY: uses}), Visitor(Somebody(role))
    return visitor.may_read(found, KEY), visitor.may_act(found, KEY), visitor.may_see_values(found, KEY)


HARVEST, ANOTHER = (Use(dag_id, "t", TaskRole.HARVESTS, KEY) for dag_id in ("harvest", "other"))
WRITES = Use("write", "t", TaskRole.WRITES, KEY)


def test_the_rules_under_fab(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {"harvest", "other", "write"}
    edits = {"user": everything, "op": everything, "admin": everything, "of one dag": {"harvest"}}
    monkeypatch.setattr(airflow, "get_auth_manager", lambda: FabAnswers(edits=edits))
    monkeypatch.setattr(airflow, "_dag", lambda dag_id: DagDetails(id=dag_id))
    nothing, read, all_ = (False, False, False), (True, False, False), (True, True, True)
    by_link = {role: decisions(role, HARVEST) for role in ("viewer", "user", "op", "admin", "of one dag")}
    assert by_link == {"viewer": read, "user": all_, "op": all_, "admin": all_, "of one dag": all_}
    assert decisions("of one dag", HARVEST, ANOTHER) == read  # it takes every Dag that harvests
    assert decisions("of one dag", HARVEST, WRITES) == all_
    configured = {role: decisions(role) for role in ("viewer", "user", "op", "admin")}
    assert configured == {"viewer": nothing, "user": nothing, "op": all_, "admin": all_}
    assert decisions("user", WRITES) == read  # no Dag harvests it: the connection decides
    monkeypatch.setattr(access.airflow, "shows_values_to_readers", lambda: True)
    assert decisions("viewer", HARVEST) == (True, False, True)


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_lets_a_route_be(check: Any) -> None:
    require_checks(routes_of(dependencies=[Depends(check)]))


def test_a_route_without_a_check_is_refused() -> None:
    with pytest.raises(TypeError, match="no access check"):
        require_checks(routes_of(dependencies=[]))


def test_a_mount_is_refused() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.mount("/static", FastAPI())
    with pytest.raises(TypeError, match="no access check"):
        require_checks(app.routes)


def routes_of(dependencies: list[Any]) -> Any:
    router = APIRouter()
    router.add_api_route("/x", lambda: None, dependencies=dependencies)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(router)
    return app.routes


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({OUR_HEADER: "1", "Sec-Fetch-Site": "same-origin"}, True),
        ({OUR_HEADER: "1", "Sec-Fetch-Site": "same-site"}, False),
        ({OUR_HEADER: "1", "Sec-Fetch-Site": "none"}, False),
        ({OUR_HEADER: "1", "Sec-Fetch-Site": "cross-site", "Origin": "http://air.flow"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({OUR_HEADER: "1", "Origin": "http://air.flow"}, True),
        ({OUR_HEADER: "1", "Origin": "https://public.host"}, True),
        ({OUR_HEADER: "1", "Origin": "http://evil.host"}, False),
        ({OUR_HEADER: "1", "Origin": "null"}, False),
        ({OUR_HEADER: "1"}, False),
        ({}, False),
    ],
)
def test_only_our_script_from_this_origin_may_change_anything(
    headers: dict[str, str], ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow, "public_host", lambda: "public.host")
    given = [(name.lower().encode(), value.encode()) for name, value in {"Host": "air.flow", **headers}.items()]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": given})
    assert access._is_ours(request) is ours
