"""Every route as everybody, on a real API server under SimpleAuthManager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest
from fastapi.routing import APIRoute
from support.acting import FROM_THE_PAGE
from support.api_server import ROLES, ApiServer
from support.parking import park_by_hand

from airflow_outbox.ui.app import ROUTERS

HARVESTED = {"outbox": "postgres_default:harvested"}
CLUSTERED = {"outbox": "postgres_default:clustered", "cluster": "west"}
CONFIGURED = {"outbox": "postgres_default:configured"}
"""No Dag harvests it."""
READ, ACT = "read", "act"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
TABLES = ("state", "shard", "parked", "trail", "cluster")


@dataclass(frozen=True, slots=True)
class Route:
    """How a route is asked, what it needs, and how it answers somebody who may. `path` has its parameters filled in,
    where it differs.
    """

    needs: str
    params: Mapping[str, Any]
    path: str | None = None
    body: Mapping[str, Any] | None = None
    answer: int = 200


SOME = {**HARVESTED, "topic": "no.such.topic", "up_to": 1}
ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/"): Route(READ, {}),
    ("GET", "/one"): Route(READ, HARVESTED),
    ("GET", "/dag"): Route(READ, {"dag_id": "harvesting"}),
    ("GET", "/task"): Route(READ, {"dag_id": "harvesting", "task_id": "harvest"}),
    ("GET", "/asset/{file}"): Route(READ, {}, path="/asset/outbox.js"),
    ("GET", "/parked"): Route(READ, HARVESTED),
    ("GET", "/record"): Route(READ, {**HARVESTED, "number": 1}),
    ("GET", "/trail"): Route(READ, HARVESTED),
    ("GET", "/ask"): Route(ACT, {**HARVESTED, "what": "pause"}),
    ("POST", "/act/pause"): Route(ACT, HARVESTED, body={}),
    ("POST", "/act/resume"): Route(ACT, HARVESTED, body={}),
    ("POST", "/act/handover"): Route(ACT, HARVESTED, body={}),
    ("POST", "/act/retry"): Route(ACT, SOME, body={}),
    ("POST", "/act/discard"): Route(ACT, SOME, body={"reason": "why"}),
    ("GET", "/ask-cluster"): Route(ACT, {**CLUSTERED, "what": "detach"}),
    ("POST", "/act/detach"): Route(ACT, CLUSTERED, body={"reason": "why"}),
    ("POST", "/act/attach"): Route(ACT, CLUSTERED, body={}),
    ("POST", "/act/reset"): Route(ACT, CLUSTERED, body={}),
    ("POST", "/act/promote"): Route(ACT, {**CLUSTERED, "cluster": "primary"}, body={}, answer=409),  # it is already
}
ACTIONS = [path.removeprefix("/act/") for _, path in ROUTES if path.startswith("/act/")]
MAY = {"nobody": (), "viewer": (READ,), "user": (READ, ACT), "op": (READ, ACT), "admin": (READ, ACT)}


@pytest.fixture
def connection(outboxes: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def parked(connection: psycopg.Connection[Any], west_is_a_backup: None) -> None:
    """A parked record with the number 1, a trail without the requests of other tests, and a backup that counts."""
    for outbox in ("harvested", "configured", "clustered"):
        connection.execute(f"TRUNCATE {outbox}_parked, {outbox}_trail RESTART IDENTITY".encode())
        park_by_hand(connection, "k", topic="t", outbox=outbox)


def rows(connection: psycopg.Connection[Any], outbox: str) -> list[Any]:
    return [connection.execute(f"SELECT * FROM {outbox}_{table}".encode()).fetchall() for table in TABLES]


def all_rows(connection: psycopg.Connection[Any]) -> list[Any]:
    return [rows(connection, outbox) for outbox in ("harvested", "clustered")]


def send(client: httpx.Client, method: str, path: str, route: Route, **headers: str) -> httpx.Response:
    given = FROM_THE_PAGE if method != "GET" else {}
    place = (route.path or path).removeprefix("/") or "./"
    return client.request(method, place, params=route.params, json=route.body, headers={**given, **headers})


def test_the_table_has_every_route() -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    assert all(isinstance(route, APIRoute) for route in routes)
    found = {(method, route.path) for route in routes if isinstance(route, APIRoute) for method in route.methods}
    assert found == ROUTES.keys()


@pytest.mark.parametrize("role", ["nobody", *ROLES])
def test_a_route_answers_those_who_may(visitors: dict[str, httpx.Client], role: str) -> None:
    answers = {each: send(visitors[role], *each, route) for each, route in ROUTES.items()}
    refused = 401 if role == "nobody" else 403
    found = {each: answer.status_code for each, answer in answers.items()}
    assert found == {each: route.answer if route.needs in MAY[role] else refused for each, route in ROUTES.items()}
    if role == "nobody":  # and learns nothing, nor what a route asks for
        assert not any("postgres_default" in answer.text for answer in answers.values())
        bare = [visitors[role].request(method, path.removeprefix("/") or "./") for method, path in ROUTES]
        assert {answer.status_code for answer in bare} == {refused}


def test_where_no_dag_harvests_the_connection_decides(visitors: dict[str, httpx.Client]) -> None:
    for (method, path), route in ROUTES.items():
        if route.needs == ACT:
            other = Route(ACT, {**route.params, **CONFIGURED}, body=route.body)
            found = {role: send(visitors[role], method, path, other).status_code for role in ROLES}
            assert [role for role, answer in found.items() if answer == 403] == ["viewer", "user"], path


def test_no_other_method_does_anything(visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]) -> None:
    before = all_rows(connection)
    for method, path in ROUTES:
        for other in {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - {method}:
            answer = send(visitors["admin"], other, path, ROUTES[method, path])
            assert answer.status_code in (403, 405), (other, path)
    assert all_rows(connection) == before


def test_state_never_changes_on_a_get(visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]) -> None:
    before = all_rows(connection)
    for (method, path), route in ROUTES.items():
        if method == "GET":
            assert send(visitors["admin"], method, path, route).status_code == 200
    for what in ACTIONS:
        is_of_cluster = "cluster" in ROUTES["POST", f"/act/{what}"].params
        ask, params = ("ask-cluster", CLUSTERED) if is_of_cluster else ("ask", HARVESTED)
        asked = visitors["admin"].get(ask, params={**params, "what": what})
        assert asked.status_code == 200
        assert (f'action="act/{what}?' in asked.text) is (what not in ("attach", "reset"))  # it counts
    assert all_rows(connection) == before


def test_only_this_page_may_send_requests(
    visitors: dict[str, httpx.Client], server: ApiServer, connection: psycopg.Connection[Any]
) -> None:
    host = httpx.URL(server.url).netloc.decode()
    ours = {"X-Outbox-Request": "act"}
    refused: list[dict[str, str]] = [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": f"http://{host}"},
        {"Origin": "http://evil.example"},
        ours,
        {**ours, "Sec-Fetch-Site": "cross-site"},
        {**ours, "Sec-Fetch-Site": "same-site"},
        {**ours, "Sec-Fetch-Site": "none"},
        {**ours, "Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
        {**ours, "Origin": "http://evil.example"},
        {**ours, "Origin": f"http://evil.example/{host}"},
        {**ours, "Origin": f"http://{host}.evil.example"},
        {**ours, "Origin": "null"},
    ]
    before = all_rows(connection)
    for what in ACTIONS:
        route = ROUTES["POST", f"/act/{what}"]
        for headers in refused:
            answer = visitors["admin"].post(f"act/{what}", params=route.params, json=route.body, headers=headers)
            assert answer.status_code == 403, (what, headers)
    assert all_rows(connection) == before
    accepted = {**ours, "Origin": f"http://{host}"}
    assert visitors["admin"].post("act/pause", params=HARVESTED, json={}, headers=accepted).status_code == 200


def test_another_outbox_behind_a_connection_is_not_asked(visitors: dict[str, httpx.Client]) -> None:
    """The page must not become a way to any table of any connection."""
    answer = visitors["admin"].get("one", params={"outbox": "postgres_default:pg_catalog.pg_authid"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "path", ["openapi.json", "docs", "redoc", "asset/../pages.py", "asset/%2e%2e/app.py", "asset/x"]
)
def test_there_is_nothing_else(path: str, visitors: dict[str, httpx.Client]) -> None:
    assert visitors["admin"].get(path).status_code == 404


def test_every_answer_has_the_headers(visitors: dict[str, httpx.Client]) -> None:
    answers = [visitors["admin"].get(path) for path in ("./", "asset/outbox.js", "nothing")]
    for answer in [*answers, visitors["nobody"].get("./")]:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert answers[0].headers["cache-control"] == "no-store"
