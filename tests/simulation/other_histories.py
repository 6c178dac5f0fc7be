"""Databases and ledgers that turn out to be of another history: restored, exchanged, set back, lost.

Whatever happens, nothing is doubled, and nothing is deleted that is not visible. Either a member notices, and nothing
moves any more; or there was nothing to notice, and all goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simulation.adopting import Adoptions, adopt
from simulation.checker import complaints
from simulation.histories import History, history_errors
from simulation.kafka import LEDGER, Partition

from airflow_outbox.harvest.protocol.ledger import HEAD

_SLOW_MARKING = 1.0


class OtherHistory(History):
    """A history in the middle of which the database, or the ledger, becomes another."""

    changed = False
    _earliest, _latest = 4.0, 16.0  # when it changes, in seconds

    async def _disturb(self) -> None:
        changing = self.world.random.choice(self._changes)
        disturbing = asyncio.create_task(super()._disturb())
        await asyncio.sleep(self._earliest + (self._latest - self._earliest) * self.world.random.random())
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {changing.__name__.strip('_')}")
        changing()
        self.changed = True
        await disturbing

    @property
    def _changes(self) -> Sequence[Callable[[], None]]:
        return (*self._changes_that_are_adopted, self._load)

    @property
    def _changes_that_are_adopted(self) -> Sequence[Callable[[], None]]:
        return self._truncate, self._recreate, self._set_back, self._restore, self._restore, self._lose, self._shorten

    def judge(self, *, drained: bool) -> list[str]:
        found = [*complaints(self.world.database, self.world.broker, drained=False), *self.bugs()]
        found += self.told(incarnation=None)
        noticed = any(True for _ in self._noticed())
        if not drained and not noticed:
            found.append("stuck: nobody says why")
        return found

    def has_ended(self) -> bool:
        # A transaction whose PREPARE was restored, and that had ended since, nobody will end again.
        return not self.world.database.state.rows or any(True for _ in self._noticed())

    def _noticed(self) -> Iterator[str]:
        for member in self.members:
            yield from history_errors(member)

    def _truncate(self) -> None:
        self.world.database.truncate_and_restart()

    def _recreate(self) -> None:
        self.world.database.recreate()

    def _set_back(self) -> None:
        database = self.world.database
        database.set_back(database.state.last_drawn * self.world.random.randrange(10) // 10)

    def _restore(self) -> None:
        """A backup; or a replica that was promoted.

        One without a timeline of its own is noticed by what leaders have written in the fence row. (What is younger
        than the last thing that the ledger says of that, and is restored without a word, nobody can notice once
        applications have overtaken the ids.)
        """
        database, random = self.world.database, self.world.random
        new_timeline = random.random() < 0.5
        newest = database.flushed if new_timeline else self._told()
        database.restore(max(newest - random.randrange(random.choice((3, 30, 300))), 0), new_timeline=new_timeline)
        if not new_timeline or database.state.fence.recorded is None:
            self.waiting.undo()

    def _load(self) -> None:
        """A dump is loaded into a younger cluster, and applications go on there."""
        self.world.database.load_elsewhere()
        if self.world.database.state.fence.recorded is None:
            self.waiting.undo()

    def _told(self) -> int:
        """The position in Postgres' log where the fence row was not yet as the ledger says it was."""
        heads = [record for record in self.world.broker.partition(LEDGER).committed() if record.key == HEAD]
        beats = json.loads(heads[-1].value)["beats"] if heads else 0
        for position, (change, values) in enumerate(self.world.database.log):
            if change == "set_fence" and values[1].beats >= beats:
                return position
        return 0

    def _lose(self) -> None:
        self.world.broker.lose_ledger()

    def _shorten(self) -> None:
        """Unclean election: the ledger's last records are gone, and with them one that Postgres knows of.

        (Where Postgres does not know of any that is gone, nobody can notice.)
        """
        old = self.world.broker.partition(LEDGER)
        new = self.world.broker.partitions[LEDGER] = Partition()
        witness = self.world.database.state.fence.witness
        new.end = self.world.random.randrange(witness.offset + 1) if witness.batch else old.end
        new.records = [record for record in old.records if record.offset < new.end]
        self.world.broker.losses += 1


class Restored(OtherHistory):
    """A backup is put back, or a replica is promoted: what shows of it is the least."""

    @property
    def _changes(self) -> Sequence[Callable[[], None]]:
        return (self._restore,)


class Adopted(OtherHistory):
    """The same; and when a member has noticed, an operator adopts, and everything is published.

    Records that were published before, and came back by a restore, are published once more; no others are.
    """

    _is_adopted = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.adoptions = Adoptions()

    @property
    def _changes(self) -> Sequence[Callable[[], None]]:
        return self._changes_that_are_adopted

    async def end(self) -> list[str]:
        await self.drain()
        if any(True for _ in self._noticed()):
            await adopt(self.world, self.adoptions)
            self._is_adopted = True
            await self.applications.go_on(8)
            if self.world.random.random() < 0.5:
                await self._adopt_again()
        return await super().end()

    async def _adopt_again(self) -> None:
        """Another ledger, which is adopted before a leader or a listener has noticed; all harvesters are stopped."""
        await asyncio.gather(*(member.stop() for member in list(self.world.members)))
        self._lose()
        await adopt(self.world, self.adoptions)
        self._start()
        await self.applications.go_on(4)

    def has_ended(self) -> bool:
        return not self.world.database.state.rows if self._is_adopted else super().has_ended()

    def judge(self, *, drained: bool) -> list[str]:
        adoptions = self.adoptions
        found = complaints(
            self.world.database, self.world.broker, drained=drained, adopted_at=adoptions.at, again=adoptions.again
        )
        if not drained:
            found.append("stuck: although it was adopted")
        is_told = drained and self._is_adopted
        found += self.told(incarnation=self.world.database.state.fence.incarnation if is_told else None)
        return found + self.bugs()


class AdoptedExchanges(Adopted):
    """The table or its ids are exchanged while a leader harvests, and Kafka takes its time over the markers, so that
    much is published and not purged yet. Nothing is published once more.
    """

    _earliest, _latest = 1.5, 6.0  # while applications write

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.world.broker.marking_time = _SLOW_MARKING

    @property
    def _changes(self) -> Sequence[Callable[[], None]]:
        return self._truncate, self._recreate, self._set_back


class AdoptedMidway(Adopted):
    """One other history after the other, each adopted in the midst of whatever else happens."""

    async def _disturb(self) -> None:
        random = self.world.random
        disturbing = asyncio.create_task(History._disturb(self))
        changes = (self._truncate, self._recreate, self._set_back, self._restore, self._restore, self._lose)
        for _ in range(random.randrange(1, 4)):
            await asyncio.sleep(1 + 5 * random.random())
            if random.random() < 0.4:
                self._change(self._restore_and_spoil)
                await asyncio.sleep(3 * random.random())  # meanwhile ids and transaction ids are used again
                await adopt(self.world, self.adoptions)
                await self._switch_over()
            elif random.random() < 0.4:
                await self._switch_over()
            else:
                self._change(random.choice(changes))
                await asyncio.sleep(random.choice((0, 3)) * random.random())
                await adopt(self.world, self.adoptions)
        self._is_adopted = True
        await disturbing

    def _change(self, change: Callable[[], None]) -> None:
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {change.__name__.strip('_')}")
        change()

    def _restore_and_spoil(self) -> None:
        """Files are put back; and somebody writes into the ledger, so that leaders read it from there."""
        self._restore()
        self.world.broker.append(LEDGER, "theirs", "not json")

    async def _switch_over(self) -> None:
        """A replica that has everything is promoted, and adopted as one that has lost nothing."""
        database = self.world.database
        self._change(lambda: database.restore(database.flushed, new_timeline=True))
        await adopt(self.world, self.adoptions, nothing_lost=True)
