"""Times as people see them everywhere: in UTC, and saying so."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(time: datetime) -> str:
    """Return a time that knows its zone, to the second, for example `2026-01-31 12:00:00 UTC`."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
