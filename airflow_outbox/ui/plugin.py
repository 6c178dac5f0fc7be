"""The plugin: mounts the page in Airflow's API server, puts it into the navigation and the tabs, and listens to
asset events and runs.

Every process of Airflow loads it, so the page itself is imported at its first request.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_outbox import asset_listener
from airflow_outbox.version_compat import resolves_connections_in_the_api_server

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PREFIX = "/outbox"
_TABS = ("dag", "task_instance")


class LazyPage:
    """The ASGI application, which is imported at the first request."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = asyncio.Lock()

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if self._app is None:
            async with self._lock:
                if self._app is None:
                    module = await asyncio.to_thread(import_module, "airflow_outbox.ui.app")
                    self._app = module.make_app()
        await self._app(scope, receive, send)


def views(base: str, tabs: str) -> list[dict[str, str]]:
    """Return the page's places in Airflow's UI. `base` is the path of `[api] base_url`, without a slash at its end."""
    icons = {"icon": f"{base}{PREFIX}/asset/icon.svg", "icon_dark_mode": f"{base}{PREFIX}/asset/icon_dark.svg"}
    page = {"name": "Outbox", **icons, "href": f"{base}{PREFIX}/", "destination": "nav", "url_route": "outbox"}
    queries = {
        "dag": "dag?dag_id={DAG_ID}",
        "task_instance": "task?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}",
    }
    wanted = {word.strip() for word in tabs.split(",")}
    return [page] + [
        {
            **page,
            "href": f"{base}{PREFIX}/{query}",
            "destination": place,
            "url_route": f"outbox_{place}",
        }
        for place, query in queries.items()
        if place in wanted
    ]


def _base() -> str:
    """The path of `[api] base_url`."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class OutboxPlugin(AirflowPlugin):
    """Airflow's plugin. It adds no page where the API server can't resolve connections (before 3.1.1)."""

    name = "outbox"


OutboxPlugin.listeners = [asset_listener]
if resolves_connections_in_the_api_server():
    OutboxPlugin.fastapi_apps = [{"app": LazyPage(), "url_prefix": PREFIX, "name": "Outbox"}]
    OutboxPlugin.external_views = views(_base(), conf.get("outbox", "tabs", fallback=", ".join(_TABS)))
