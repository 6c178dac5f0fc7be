"""Decide what `airflow-outbox adopt` does, from the fence row and all that can be read of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger, Unread
from airflow_outbox.harvest.protocol.recovery import differences, of_present_records
from airflow_outbox.values.fence import Fence, LedgerPosition

_ADOPTIONS_A_TIMELINE = 1000

_CHOSEN = 2**62
"""An id from here on was chosen by a writer: the lower half is the sequence's."""


@dataclass(frozen=True, slots=True)
class Adopting:
    """The differences to accept (none: there is nothing to adopt), and what follows from accepting them.

    - `certain`: the batches to purge in any case.
    - `unpurged`: the batches to purge if the operator knows that the database has lost nothing.
    - `witness`: where leaders go on.
    - `last_incarnation`: the last one that the ledger knows, or that a restore may have undone (0: none).
    """

    differences: Sequence[str]
    certain: Sequence[Entry]
    unpurged: Sequence[Entry]
    witness: LedgerPosition
    last_incarnation: int


def require_own_ledger(fence: Fence, ledger: Ledger) -> None:
    """Raise ConfigurationError if the ledger is another outbox's: adopting does not help."""
    head = ledger.head
    if head is not None and head.outbox_id != fence.outbox_id:
        raise ConfigurationError(
            f"the ledger belongs to outbox {head.outbox_id}, this is outbox {fence.outbox_id}, and two outboxes can't "
            "share one. Remove ledger_topic and transactional_id from the configuration, or choose others, and run "
            "`airflow-outbox init`. If the other outbox no longer exists, delete the ledger's topic instead"
        )


def adopting(fence: Fence, ledger: Ledger, unread: Iterable[Unread]) -> Adopting:
    """Return what to accept and to do. No release has written the `unread` records. Raises ConfigurationError."""
    require_own_ledger(fence, ledger)
    since = fence.witness.offset if fence.witness.topic_id == ledger.topic_id else 0  # leaders read nothing earlier
    foreign = {offset: text for offset, text in unread if offset >= since}
    known = [entry.incarnation for entry in ledger.entries] + ([ledger.head.incarnation] if ledger.head else [])
    # A restore may have undone an adoption after which nothing was published. It began a later timeline.
    undone = _ADOPTIONS_A_TIMELINE * (fence.present.timeline - 1)
    return Adopting(
        differences=list(dict.fromkeys([*foreign.values(), *differences(fence, ledger)])),
        certain=list(of_present_records(fence, ledger)),
        unpurged=unpurged(fence, ledger),
        witness=_witness(fence, ledger, foreign),
        last_incarnation=max([undone, *known]),
    )


def unpurged(fence: Fence, ledger: Ledger) -> list[Entry]:
    """The entries of the present incarnation that are not known to be purged.

    Earlier incarnations do not count: their rest was accepted as unpublished, and its ids may name other records now.
    """
    last = max(fence.incarnation, ledger.head.incarnation if ledger.head else 0)
    own = (None, fence.outbox_id)
    return [
        entry
        for entry in ledger.entries
        if entry.batch > fence.witness.batch and entry.incarnation == last and entry.outbox_id in own
    ]


def _witness(fence: Fence, ledger: Ledger, foreign: Iterable[int]) -> LedgerPosition:
    """Where leaders will read the ledger from: its head.

    Without a head, or with `foreign` offsets after it, which leaders could not read, it is the ledger's end. Batches
    are then numbered from 1 again.
    """
    head = ledger.head
    published = [last for entry in ledger.entries for _, last in entry.runs]
    told = [fence.witness.highest_id, *published, *([head.highest_id] if head else [])]
    highest_id = max((highest for highest in told if highest < _CHOSEN), default=0)
    if head is None or any(offset >= ledger.head_offset for offset in foreign):
        return LedgerPosition(ledger.topic_id, 0, ledger.end, highest_id)
    return LedgerPosition(ledger.topic_id, head.batch, ledger.head_offset, highest_id)
