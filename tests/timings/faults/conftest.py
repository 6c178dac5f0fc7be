"""The fixtures of the faults' folder: servers of this folder's own, and scenes on them."""

from __future__ import annotations

from faults.conftest import (  # noqa: F401
    backup,
    clusters,
    delivery,
    frame_servers,
    is_long,
    late_scene,
    regional_scene,
    regions_of_two,
    scene,
    seed,
    servers,
)
