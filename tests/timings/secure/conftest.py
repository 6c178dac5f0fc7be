"""The fixtures of the secure folder: a broker of this folder's own."""

from __future__ import annotations

from secure.conftest import disks, make_outbox, roles, secure, start  # noqa: F401
