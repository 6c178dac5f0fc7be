"""Fence the producers of earlier views, even while Kafka can't end one of their transactions.

A transaction that touches a partition without enough brokers ends only when they are back: its markers wait for them.
Until then the coordinator lets no producer of the same id begin. Other partitions get their markers, and other ids can
be used. An id may be left alone, and fenced later, if both hold:

- The producers that used it are given up, so that none begins another transaction. They are of this process, whose view
  was the last one that began, or the fence row says so (`protocol.recovery.require_given_up`).
- It is known whether its last transaction is committed: nobody ever asked for that, or the coordinator acknowledged it,
  and the ledger tells of it. Otherwise the id is *uncertain* and has to be fenced.

Records that a given-up producer sent may still arrive, and be aborted. Nothing commits them: within one epoch no
request that ends a transaction comes late (`protocol.producer_state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice

from airflow_outbox.errors import KafkaError, StuckTransactionsError
from airflow_outbox.harvest.rotation import Rotation, require_fenced


@dataclass(slots=True)
class StuckIds:
    """The transactional ids that this process leaves alone, and those that it must not leave alone."""

    left_alone: set[str] = field(default_factory=set)
    uncertain: set[str] = field(default_factory=set)

    def leave_alone(self, ids: Collection[str]) -> None:
        """Leave alone ids whose transaction can't be ended. Raises KafkaError if one may yet prove to be committed."""
        if unknown := self.uncertain.intersection(ids):
            raise KafkaError(
                f"can't tell whether the last transaction of {' and '.join(sorted(unknown))} is committed: too few "
                "brokers are up for one of its partitions. Bring them back"
            )
        self.left_alone.update(ids)

    def fenced(self, transactional_id: str) -> None:
        """Note that all earlier transactions of this id have ended."""
        self.left_alone.discard(transactional_id)
        self.uncertain.discard(transactional_id)

    def free(self, prefix: str, number: int) -> list[str]:
        """Return the first ids with this prefix that are not left alone."""
        ids = (f"{prefix}.{place}" for place in count())
        return list(islice((name for name in ids if name not in self.left_alone), number))


class Fencing:
    """The part of the port `TransactionalLog` that keeps earlier producers of one log from their work."""

    def __init__(self, rotation: Rotation, stuck: StuckIds, fence_one: Callable[[str, bool], Awaitable[None]]) -> None:
        """`fence_one` fences the producers of one id, patiently or not. It raises StuckTransactionsError when that does
        not end.
        """
        self._rotation = rotation
        self._stuck = stuck
        self._fence_one = fence_one
        self._unfenced: list[str] = []

    @property
    def unfenced(self) -> Sequence[str]:
        return self._unfenced

    async def fence(self, others: Collection[str]) -> None:
        strays = sorted({*others} - {*self._rotation.transactional_ids})
        own, *found = await asyncio.gather(
            self._rotation.fence(),
            *(self._fence_one(stray, stray not in self._stuck.left_alone) for stray in strays),
            return_exceptions=True,
        )
        for stray, outcome in zip(strays, found, strict=True):
            if isinstance(outcome, StuckTransactionsError):
                self._stuck.leave_alone([stray])
                self._unfenced.append(stray)
            else:
                require_fenced([outcome])
                self._stuck.fenced(stray)
        with self.noting_stuck():
            require_fenced([own])
        for transactional_id in self._rotation.transactional_ids:
            self._stuck.fenced(transactional_id)

    async def fence_rest(self) -> None:
        for stray in [*self._unfenced]:
            try:
                await self._fence_one(stray, False)
            except KafkaError:
                continue
            self._unfenced.remove(stray)
            self._stuck.fenced(stray)

    @contextmanager
    def noting_stuck(self) -> Iterator[None]:
        """Leave stuck ids alone, so that the next log does without them."""
        try:
            yield
        except StuckTransactionsError as error:
            self._stuck.leave_alone(error.transactional_ids)
            raise

    def close(self) -> None:
        """Note the uncertain ids. Call this before the producers are given up."""
        self._stuck.uncertain.update(self._rotation.uncertain)
