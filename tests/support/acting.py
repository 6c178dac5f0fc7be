"""Requests to the page, as its own script makes them."""

from __future__ import annotations

from typing import Any

import httpx

FROM_THE_PAGE = {"X-Outbox-Request": "act", "Sec-Fetch-Site": "same-origin"}


def act(client: httpx.Client, what: str, outbox: str, *, reason: str | None = None, **params: Any) -> httpx.Response:
    """Send a request as the page's script does."""
    body = {} if reason is None else {"reason": reason}
    query = {"outbox": f"postgres_default:{outbox}", **params}
    return client.post(f"act/{what}", params=query, json=body, headers=FROM_THE_PAGE)
