"""A bug that is planted: what it breaks, and what finds it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from simulation.verdicts import Verdict
from simulation.world import SOUND, Design


@dataclass(frozen=True, slots=True)
class Bug:
    """A broken rule, the verdicts of which one has to find it (no other complaint counts), and the kind of histories
    that do: by members' design, or by exchanging an attribute of something for a value.
    """

    name: str
    found_by: Collection[Verdict]
    kind: str = "exactly_once"
    design: Design = SOUND
    exchanged: tuple[Any, str, Any] | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while this lasts."""
        if self.exchanged is None:
            yield
        else:
            with patch.object(*self.exchanged):
                yield
