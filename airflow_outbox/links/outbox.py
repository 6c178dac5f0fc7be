"""A link from a task to the page of its outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

from airflow_outbox.version_compat import keeps_addresses_within_frames

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class OutboxLink(BaseOperatorLink):
    """The page of the outbox that a task uses. The task stores the address when it has run, or is deferred.

    A task with a list of outboxes has the page of all of them. The address is a path on Airflow's own host, since
    workers may know another host than browsers.
    """

    name = "Outbox"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page, empty where the operator does not say which outbox it uses."""
        conn_id, outbox = (getattr(operator, field, None) for field in ("postgres_conn_id", "outbox"))
        if isinstance(conn_id, str) and isinstance(outbox, str):
            shown = f"one?{urlencode({'outbox': f'{conn_id}:{outbox}'})}"
        elif isinstance(outbox, list):
            shown = f"task?{urlencode({'dag_id': ti_key.dag_id, 'task_id': ti_key.task_id})}"
        else:
            return ""
        base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
        page = f"{base}/outbox/{shown}"
        return f"{base}/plugin/outbox{page}" if keeps_addresses_within_frames() else page
