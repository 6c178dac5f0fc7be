"""Digests of whole histories, one of each kind, to compare two processes: `python -m simulation.digests`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from unittest.mock import patch

from simulation.kinds import KINDS, lived
from simulation.loop import Handle


def digests() -> dict[str, str]:
    """By kind."""
    return {kind: _digest(kind, seed) for seed, kind in enumerate(KINDS)}


def _digest(kind: str, seed: int) -> str:
    """That of every call, in order, and of all that it comes to."""
    found = hashlib.sha256()
    run = Handle.run

    def noted(handle: Handle) -> None:
        found.update(f"{asyncio.get_running_loop().time()} {handle.name}\n".encode())
        run(handle)

    with patch.object(Handle, "run", noted):
        outcome = lived(kind, seed)
    found.update(repr(outcome).encode())
    return found.hexdigest()


if __name__ == "__main__":
    print(json.dumps(digests()))
