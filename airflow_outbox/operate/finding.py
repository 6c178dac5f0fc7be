"""One finding of `check`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """MISSING: harvesting can't work. DANGEROUS: it works, but a promise may not hold. UNCHECKED: it can't be seen.
    NOTE: it works, but not all as it was configured.
    """

    MISSING = "missing"
    DANGEROUS = "dangerous"
    UNCHECKED = "not checked"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend, or to look at by other means."""

    severity: Severity
    text: str
