"""Bugs in what is done about transactional ids that can't be fenced now: see `planted`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.recovery import RecoveryTerm
from airflow_outbox.harvest.settling import Settling
from airflow_outbox.values.fence import Fence, Flushed, recorded_ids


def leaves_others_alone(fence: Fence, unfenced: Collection[str], *, own_views: Collection[UUID]) -> None:
    """Believes of other members' producers that they are given up, too."""


def gives_all_up(transactional_ids: Iterable[str], *, given_up: Iterable[str]) -> list[str]:
    """Says that all producers are given up, also those that are at work."""
    ids = list(transactional_ids)
    return recorded_ids(ids, given_up=ids)


def leaves_all_alone(stuck: StuckIds, ids: Collection[str]) -> None:
    """Leaves an id alone whose last commit may still come."""
    stuck.left_alone.update(ids)


class AnnouncesAll(Settling):
    """Moves the watermark past what earlier views have committed, and nobody can read yet."""

    @property
    def may_announce(self) -> bool:
        return True


class UnparksUnread(RecoveryTerm):
    """Takes records out of the parked table that nobody can read yet."""

    async def _require_readable(self, retried: Any) -> None:
        return None


class CountsLater(ExactlyOnceTerm):
    """Keeps the counts back, with the watermark, while purges go on."""

    def _to_account(self) -> Flushed | None:
        return super()._to_account() if self._settling.may_announce else None


async def never_fence_rest(*_: Any) -> None:
    """Forgets what could not be fenced at first."""
