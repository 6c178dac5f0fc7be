from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from support.harvesting import PATIENCE

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest.absence import Absence
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.layout_change import LayoutChange
from airflow_outbox.harvest.leadership import Leadership
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.protocol.election import Lead, StandBy
from airflow_outbox.harvest.protocol.handover import StandIn
from airflow_outbox.values.fence import OperatorRequest

REQUEST = OperatorRequest()


class Table:
    def __init__(self) -> None:
        self.followed: list[set[UUID]] = []
        """The views of which each take-over was to follow one."""

    async def take_over(self, view: UUID, *, after: Collection[UUID]) -> Any:
        self.followed.append(set(after) - {view})
        return SimpleNamespace(request=REQUEST, backups={})

    async def note_error(self, view: UUID, error: str) -> None: ...

    async def leave(self, view: UUID) -> None: ...

    async def close(self) -> None: ...


class FailingTerm:
    """Kafka fails, after `published` records of this shard and one of another were published."""

    prepares, request = False, REQUEST

    def __init__(self, measures: Measures, published: int) -> None:
        self.measures, self.published = measures, published

    async def run(self) -> None:
        self.measures.publishes(Counter(topic=self.published + 1))
        raise KafkaError("the topic is stuck")

    def stop(self) -> None: ...


class QuietTerm:
    """Runs until it is stopped."""

    prepares, attaches, request, published = False, False, REQUEST, 0

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


class QuietModes:
    def begin_leadership(self) -> None: ...

    async def terms(self, view: UUID, fence: object, measures: Measures) -> AsyncIterator[QuietTerm]:
        yield QuietTerm()


class SlowToLeave(Table):
    """Its first `leave` waits until `may_leave` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving, self.may_leave = asyncio.Event(), asyncio.Event()

    async def leave(self, view: UUID) -> None:
        self.leaving.set()
        await self.may_leave.wait()


class Modes:
    def __init__(self, published: int) -> None:
        self.published = published

    def begin_leadership(self) -> None: ...

    async def terms(self, view: UUID, fence: object, measures: Measures) -> AsyncIterator[FailingTerm]:
        yield FailingTerm(measures, self.published)


async def delays(*, published: int) -> list[float]:
    """The seconds that a leader waits after each of its first three failures."""
    found: list[float] = []
    enough = asyncio.Event()

    def events(event: str, **details: Any) -> None:
        if event == "error":
            found.append(details["retry_in"])
        if len(found) == 3:
            enough.set()

    election = cast(Any, SimpleNamespace(released=lambda shard: None))
    leadership = Leadership(
        table=cast(Any, Table()),
        modes=cast(Any, Modes(published)),
        election=election,
        absence=Absence(election, events),
        limits=Limits(),
        events=events,
        measures=Measures(asyncio.get_running_loop().time),
        layout_changed=LayoutChange(),
    )
    await leadership.follow(Lead())
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
    await leadership.stand_by(0)
    return found


async def test_a_shard_that_fails_waits_ever_longer_though_others_publish() -> None:
    first, second, third = await delays(published=0)
    assert first < second < third


async def test_a_shard_that_publishes_before_it_fails_tries_again_soon() -> None:
    assert len(set(await delays(published=1))) == 1


async def test_a_leadership_that_is_closed_holds_no_rebalance_up() -> None:
    """In another layout the member leaves its group, which waits for each shard that is not released."""
    released: list[int] = []
    election = cast(Any, SimpleNamespace(released=released.append))
    leadership = Leadership(
        table=cast(Any, Table()),
        modes=cast(Any, Modes(0)),
        election=election,
        absence=Absence(election, lambda *_, **__: None),
        limits=Limits(),
        events=lambda *_, **__: None,
        measures=Measures(asyncio.get_running_loop().time),
        layout_changed=LayoutChange(),
        shard=3,
    )
    await leadership.follow(Lead())
    await leadership.close()
    assert released == [3]


class Standing:
    """A leadership of shard 3 that stands in, and what it tells."""

    def __init__(self, table: Table, modes: object) -> None:
        self.told: list[str] = []
        self.took_over = asyncio.Event()
        self.election = cast(Any, SimpleNamespace(released=lambda shard: None))
        self.leadership = Leadership(
            table=cast(Any, table),
            modes=cast(Any, modes),
            election=self.election,
            absence=Absence(self.election, self.events),
            limits=Limits(),
            events=self.events,
            measures=Measures(asyncio.get_running_loop().time),
            layout_changed=LayoutChange(),
            shard=3,
        )

    def events(self, event: str, **_: Any) -> None:
        self.told.append(event)
        if event == "took_over":
            self.took_over.set()


async def test_one_that_stands_in_follows_one_view_and_goes_on_when_the_group_elects_it() -> None:
    table = Table()
    standing, of_the_layout = Standing(table, QuietModes()), uuid4()
    leadership = standing.leadership
    async with asyncio.timeout(PATIENCE):
        await leadership.follow(StandIn(of_the_layout))
        await standing.took_over.wait()
        term = leadership.term
        await leadership.follow(Lead())
        assert leadership.term is term
        assert standing.told == ["stands_in", "view", "took_over", "elected"]
        standing.took_over.clear()
        await leadership.follow(Lead())  # as after a fencing: the group's word begins a new term
        await standing.took_over.wait()
        assert leadership.term not in (term, None)
        await leadership.follow(StandBy("another member has it"))
    assert table.followed == [{of_the_layout}, set()]


async def test_one_that_is_elected_while_it_ceases_to_stand_in_begins_again() -> None:
    table = SlowToLeave()
    standing = Standing(table, Modes(published=0))
    async with asyncio.timeout(PATIENCE):
        await standing.leadership.follow(StandIn(uuid4()))
        await table.leaving.wait()
        standing.took_over.clear()
        await standing.leadership.follow(Lead())
        await standing.took_over.wait()
        table.may_leave.set()
        await standing.leadership.follow(StandBy("the test is over"))


class WithdrawnModes(QuietModes):
    """The first term ends for a request that is withdrawn before it has ended."""

    def __init__(self) -> None:
        self.terms_begun = 0

    async def terms(self, view: UUID, fence: object, measures: Measures) -> AsyncIterator[QuietTerm]:
        self.terms_begun += 1
        term = QuietTerm()
        if self.terms_begun == 1:
            term.stop()
        yield term


async def test_a_leader_leads_on_when_what_its_term_ended_for_was_withdrawn() -> None:
    modes = WithdrawnModes()
    standing = Standing(Table(), modes)
    async with asyncio.timeout(PATIENCE):
        await standing.leadership.follow(Lead())
        while modes.terms_begun < 2 or standing.leadership.term is None:
            await asyncio.sleep(0)
        await standing.leadership.follow(StandBy("the test is over"))


class HaltedTable(Table):
    """Notes the views under which it is told of errors."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[UUID] = []
        self.halted: list[UUID] = []
        self.noted: list[UUID] = []

    async def take_over(self, view: UUID, *, after: Collection[UUID]) -> Any:
        self.taken.append(view)
        self.followed.append(set(after) - {view})
        asked = replace(REQUEST, attach="b", attaches=len(self.taken) == 1)
        return SimpleNamespace(request=asked, backups={})

    async def halt(self, view: UUID, reason: str) -> None:
        self.halted.append(view)

    async def note_error(self, view: UUID, error: str) -> None:
        self.noted.append(view)


async def test_what_fails_while_a_cluster_is_attached_is_noted_under_the_view_that_leads_then() -> None:
    attached: list[UUID] = []

    async def attach(cluster: str, *, view: UUID, **_: Any) -> None:
        attached.append(view)
        raise HistoryError("cluster c: the ledger is another one")

    table = HaltedTable()
    standing = Standing(table, QuietModes())
    standing.leadership._attach = attach
    async with asyncio.timeout(PATIENCE):
        await standing.leadership.follow(Lead())
        await standing.took_over.wait()
        await standing.leadership.follow(StandBy("the test is over"))
    assert table.halted == table.noted == attached
    assert table.followed == [set(), {*attached}]
