"""The fixtures of the hostile rows' folder."""

from __future__ import annotations

from hostile.conftest import innocents, mode  # noqa: F401
