"""The verdicts of the simulation: each complaint of a history begins with one, and a colon."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The faults that a history can have.

    Records:

    - `LOST`, `DOUBLED`, or `OUT_OF_ORDER` within a topic and key;
    - `FOREIGN`: never committed in Postgres, or undone by a crash;
    - `TORN`: a source transaction of which only a part became visible at a time;
    - `CLUSTERS_DIFFER`: one holds other records than another, or in another order, or in other transactions;
    - `DISCARDED_PUBLISHED`: an operator had thrown the record away;
    - `PURGED_UNPUBLISHED`: deleted before it was readable.

    Answers:

    - `FALSE_WATERMARK`: it sees a transaction that is not readable as a whole, or goes back;
    - `FALSE_COUNTS` of what was published;
    - `FALSE_PUBLISHED`: a waiter was told so too early;
    - `MISSING_PUBLISHED`: a waiter was never told, or was refused.

    Members:

    - `STUCK`: records are left;
    - `FALSE_ALARM`: another history was found where there is none;
    - `DUEL`: a member took over without being elected, and without standing in for one that was;
    - `DISTURBED`: a copy of the database kept the original's members from their work;
    - `BUG`: an error that nobody expects.
    """

    LOST = "lost"
    DOUBLED = "doubled"
    OUT_OF_ORDER = "out of order"
    FOREIGN = "foreign"
    TORN = "torn"
    DISCARDED_PUBLISHED = "discarded and published"
    PURGED_UNPUBLISHED = "purged unpublished"
    CLUSTERS_DIFFER = "clusters differ"
    FALSE_WATERMARK = "false watermark"
    FALSE_COUNTS = "false counts"
    FALSE_PUBLISHED = "false published"
    MISSING_PUBLISHED = "missing published"
    STUCK = "stuck"
    FALSE_ALARM = "false alarm"
    DUEL = "duel"
    DISTURBED = "production was disturbed"
    BUG = "bug"


def verdict_of(complaint: str) -> Verdict:
    """The verdict that a complaint begins with. Raises ValueError when it begins with none."""
    return Verdict(complaint.partition(":")[0])
