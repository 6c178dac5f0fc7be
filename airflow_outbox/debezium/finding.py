"""Findings: the things that a translation leaves out, or does otherwise, with what to do about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DebeziumSeverity(Enum):
    """REFUSED: it can't be done. DANGEROUS: records would be lost, doubled or out of order. DIFFERS: consumers see a
    difference. NOTE: they see none, but an operator should know.
    """

    REFUSED = "not possible"
    DANGEROUS = "dangerous"
    DIFFERS = "differs"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class DebeziumFinding:
    """One thing to mend, or to know."""

    severity: DebeziumSeverity
    text: str


def refused(text: str) -> DebeziumFinding:
    return DebeziumFinding(DebeziumSeverity.REFUSED, text)


def dangerous(text: str) -> DebeziumFinding:
    return DebeziumFinding(DebeziumSeverity.DANGEROUS, text)


def differs(text: str) -> DebeziumFinding:
    return DebeziumFinding(DebeziumSeverity.DIFFERS, text)


def note(text: str) -> DebeziumFinding:
    return DebeziumFinding(DebeziumSeverity.NOTE, text)
