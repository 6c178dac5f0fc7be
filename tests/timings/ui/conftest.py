"""The fixtures of the page's folder: an API server of this folder's own, and browsers."""

from __future__ import annotations

from integration.ui.browser.conftest import browser, demo, visit  # noqa: F401
from integration.ui.conftest import (  # noqa: F401
    flights,
    outboxes,
    server,
    silent,
    visitors,
)
