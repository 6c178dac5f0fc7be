from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID, uuid4

from support.harvesting import PATIENCE

from airflow_outbox.harvest.layout_change import NO_VIEWS, LayoutChange
from airflow_outbox.harvest.member import Member


class Harvester:
    """Ends at once, for the outbox has another layout, which has these views if this member has `written` it."""

    def __init__(self, written: Mapping[int, UUID] | None = None) -> None:
        self.layout_changed = LayoutChange()
        if written is None:
            self.layout_changed.set()
        else:
            self.layout_changed.written(written)
        self.has_run = False
        self.led_under: Mapping[int, UUID] | None = None

    async def run(self, views: Mapping[int, UUID]) -> None:
        self.has_run, self.led_under = True, views

    async def stop(self, grace: float) -> None: ...


class Assembled:
    """Closes when `may_close` is set."""

    def __init__(self, written: Mapping[int, UUID] | None = None) -> None:
        self.harvester = Harvester(written)
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()


async def test_a_member_that_is_stopped_between_two_layouts_ends() -> None:
    first, second = Assembled(), Assembled()
    second.may_close.set()

    async def assemble() -> Assembled:
        return second

    member = Member(cast(Any, first), assemble=cast(Any, assemble), events=cast(Any, lambda *_, **__: None))
    running = asyncio.create_task(member.run())
    async with asyncio.timeout(PATIENCE):
        await first.closing.wait()
        await member.stop(0)
        first.may_close.set()
        await running
    assert second.closing.is_set()
    assert not second.harvester.has_run


async def test_a_member_leads_at_once_in_the_layout_that_it_has_written_and_in_no_later_one() -> None:
    views = {0: uuid4(), 1: uuid4()}
    first, *others = Assembled(views), Assembled(), Assembled()
    for assembled in (first, *others):
        assembled.may_close.set()
    last = others[-1]
    coming = iter(others)

    async def assemble() -> Assembled:
        assembled = next(coming)
        if assembled is last:
            assembled.harvester.layout_changed.clear()
        return assembled

    member = Member(cast(Any, first), assemble=cast(Any, assemble), events=cast(Any, lambda *_, **__: None))
    async with asyncio.timeout(PATIENCE):
        await member.run()
    assert [each.harvester.led_under for each in (first, *others)] == [NO_VIEWS, views, NO_VIEWS]
