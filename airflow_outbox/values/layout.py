"""The layout of an outbox: how many shards it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """`number` counts an outbox's layouts. It has `shards` shards now, and is to have `wanted` (None: as many)."""

    number: int = 1
    shards: int = 1
    wanted: int | None = None
