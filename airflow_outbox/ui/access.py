"""The rights to read an outbox's page, to act on it, and to see its records' values.

Every route carries one of these checks (`require_checks`), and each of them begins with `signed_in`. So nobody without
a login comes any further. Everything but a GET has to come from this page's own script, from this origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Query, Request, status
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from airflow_outbox.errors import OutboxError
from airflow_outbox.ui import airflow
from airflow_outbox.ui.outboxes import Clusters, Found, OutboxKey, TaskRole, Use

OUR_HEADER = "X-Outbox-Request"
"""A header that a form of another page can't send."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
finder = airflow.Finder()


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in."""

    user: Any

    @property
    def name(self) -> str:
        """As whom the trail knows him."""
        return str(self.user.get_name())

    def may_read(self, found: Found, key: OutboxKey) -> bool:
        """He sees plugins, or any Dag that uses the outbox."""
        return self.sees_plugins() or any(airflow.may_read_dag(self.user, dag_id) for dag_id in found.dags(key))

    def may_act(self, found: Found, key: OutboxKey) -> bool:
        """He may edit every Dag that harvests the outbox. Where no Dag does: the connection."""
        if dag_ids := found.dags(key, TaskRole.HARVESTS):
            return airflow.may_edit_dags(self.user, dag_ids)
        return airflow.may_edit_connection(self.user, key.conn_id)

    def may_see_values(self, found: Found, key: OutboxKey) -> bool:
        return airflow.shows_values_to_readers() or self.may_act(found, key)

    def may_read_dag(self, dag_id: str) -> bool:
        return airflow.may_read_dag(self.user, dag_id)

    def sees_plugins(self) -> bool:
        return airflow.sees_plugins(self.user)


@dataclass(frozen=True, slots=True)
class Asked:
    """An outbox that a visitor may read, and what else he may do."""

    visitor: Visitor
    key: OutboxKey
    uses: tuple[Use, ...]
    may_act: bool
    may_see_values: bool

    @property
    def harvesting_dags(self) -> list[str]:
        """The Dags that harvest the outbox."""
        return sorted({use.dag_id for use in self.uses if use.role is TaskRole.HARVESTS})

    @property
    def clusters(self) -> Clusters | None:
        """How several clusters are reached; None where no Dag says so."""
        return next((use.clusters for use in self.uses if use.clusters is not None), None)


def signed_in(request: Request, user: Annotated[Any, Depends(airflow.get_user)]) -> Visitor:
    """Somebody is signed in (otherwise 401), and a request that may change something comes from this page."""
    if request.method not in _SAFE and not _is_ours(request):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This request does not come from the Outbox page.")
    return Visitor(user)


def may_read(
    visitor: Annotated[Visitor, Depends(signed_in)],
    outbox: Annotated[str, Query(description="connection:outbox")],
) -> Asked:
    """The outbox is known to Airflow (otherwise 404), and the visitor may read it (otherwise 403)."""
    found = finder.find()
    key = _named(outbox)
    if key is None or (key not in found.outboxes and not found.uses(key)):
        if not visitor.sees_plugins():  # does not tell which outboxes there are
            raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not see this outbox.")
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            f"No Dag uses an outbox {outbox}. If it is harvested elsewhere, add it to [outbox] outboxes.",
        )
    if not visitor.may_read(found, key):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not see this outbox.")
    return Asked(visitor, key, found.uses(key), visitor.may_act(found, key), visitor.may_see_values(found, key))


def _named(outbox: str) -> OutboxKey | None:
    """The outbox, however its name is written; None for a text that names none."""
    with suppress(OutboxError):
        return OutboxKey.parse(outbox)
    return None


def may_act(asked: Annotated[Asked, Depends(may_read)]) -> Asked:
    """The visitor may act on the outbox (otherwise 403)."""
    if not asked.may_act:
        raise HTTPException(status.HTTP_403_FORBIDDEN, refusal(asked.key, asked.uses))
    return asked


def may_see_values(asked: Annotated[Asked, Depends(may_read)]) -> Asked:
    """The visitor may see the records' keys, values and headers (otherwise 403)."""
    if not asked.may_see_values:
        raise HTTPException(status.HTTP_403_FORBIDDEN, refusal(asked.key, asked.uses))
    return asked


def may_read_dag(visitor: Annotated[Visitor, Depends(signed_in)], dag_id: str) -> Visitor:
    """The visitor may read the Dag (otherwise 403)."""
    if not visitor.may_read_dag(dag_id):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "You may not see this Dag.")
    return visitor


CHECKS: tuple[Callable[..., Any], ...] = (signed_in, may_read, may_act, may_see_values, may_read_dag)


def refusal(key: OutboxKey, uses: Iterable[Use]) -> str:
    """Return why somebody may not act on an outbox, and what it would take."""
    dag_ids = sorted({use.dag_id for use in uses if use.role is TaskRole.HARVESTS})
    if dag_ids:
        return f"Only somebody who may edit every Dag that harvests this outbox may do that: {', '.join(dag_ids)}."
    return f"No Dag harvests this outbox: only somebody who may edit the connection {key.conn_id} may do that."


def require_checks(routes: Iterable[BaseRoute]) -> None:
    """Raise TypeError unless every route carries a check: a mount, or a route without one, answers anybody."""
    for route in routes:
        if not isinstance(route, APIRoute) or not _checks(route.dependant):
            raise TypeError(f"{route} of the Outbox page has no access check. Give it one of {__name__}")


def _checks(dependant: Dependant) -> bool:
    return dependant.call is signed_in or any(_checks(each) for each in dependant.dependencies)


def _is_ours(request: Request) -> bool:
    """Whether our script sent it, from this origin. A browser that does not say where from tells its origin."""
    if OUR_HEADER not in request.headers:
        return False
    if (site := request.headers.get("Sec-Fetch-Site")) is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("Origin", "")).netloc
    return bool(origin) and origin in (request.headers.get("Host"), airflow.public_host())


class SecurityHeaders:
    """ASGI middleware: every answer bears the headers that browsers need to keep other pages and scripts out."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                if b"cache-control" not in present:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, answer if scope["type"] == "http" else send)
