"""The page as an application: its routes, and what it answers when it refuses.

It is built once, at the first request in an API server.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.status import HTTP_401_UNAUTHORIZED, HTTP_422_UNPROCESSABLE_CONTENT

from airflow_outbox.ui import actions, airflow, cluster_actions, pages, parked
from airflow_outbox.ui.access import SecurityHeaders, require_checks
from airflow_outbox.ui.rendering import page

ROUTERS = (pages.router, parked.router, actions.router, cluster_actions.router)
"""All routes of the page. Each carries a check of `access`, or the application is not built."""


def make_app() -> Any:
    """Return the ASGI application. Raises TypeError if a route carries no check."""
    app = FastAPI(title="Outbox", openapi_url=None, docs_url=None, redoc_url=None)
    for router in ROUTERS:
        app.include_router(router)
    require_checks(app.routes)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    return SecurityHeaders(app)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    login = airflow.login_url() if error.status_code == HTTP_401_UNAUTHORIZED else ""
    return page(request, "refused.html", status=error.status_code, problem=str(error.detail), login=login)


async def _misunderstood(request: Request, error: Exception) -> Response:
    problem = "The address is not complete. Go back to all outboxes, and choose one."
    return page(request, "refused.html", status=HTTP_422_UNPROCESSABLE_CONTENT, login="", problem=problem)
