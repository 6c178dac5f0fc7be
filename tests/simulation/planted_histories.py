"""Bugs in what is concluded of other histories: see `planted`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from airflow_outbox.harvest.protocol import adoption, recovery
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import Page

_recover = recovery.recover
_differences_of_databases = recovery.differences_of_databases


def ignores_views(fence: Fence, ledger: Ledger) -> Any:
    return _recover(replace(fence, begun_view=None), ledger)


def ignores_database_oids(fence: Fence) -> Iterator[str]:
    recorded = replace(fence.recorded, database_oid=fence.present.database_oid)
    return _differences_of_databases(replace(fence, recorded=recorded))


def looks_only_later(fence: Fence) -> None:
    """Leaves what Postgres alone can tell until the producers are fenced."""


def pass_by(fence: Fence, ledger: Ledger) -> None:
    """Leaves what the ledger tells until the producers are fenced."""


def completes_behind_the_head(fence: Fence, ledger: Ledger) -> Any:
    found = _recover(fence, ledger)
    return replace(found, unpurged=tuple(entry for entry in ledger.entries if entry.batch > fence.witness.batch))


def takes_any(fence: Fence, page: Page, *, file_number: int | None) -> int:
    """Publishes whatever a page shows."""
    return page.file_number


def doubts(fence: Fence, ledger: Ledger) -> Sequence[Entry]:
    return ()


def never_doubts(fence: Fence, ledger: Ledger) -> Sequence[Entry]:
    return adoption.unpurged(fence, ledger)


def adopts_all_incarnations(fence: Fence, ledger: Ledger) -> list[Entry]:
    return [entry for entry in ledger.entries if entry.batch > fence.witness.batch]
