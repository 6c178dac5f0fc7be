"""Two databases behind one Kafka: a copy that is harvested with the ledger and the producer's name of the original.

The copy is one of the files, of which Postgres alone can't tell anything; or a database that was made from the original
as a template, whose oid tells. Its members have a group of their own.
"""

from __future__ import annotations

import asyncio
import json

from simulation.applications import Applications
from simulation.checker import complaints, purged_unpublished, seen
from simulation.histories import History, history_errors
from simulation.kafka import LEDGER
from simulation.world import Member, World

from airflow_outbox.harvest.protocol.ledger import HEAD, expanded

_TRANSACTIONS = 15
_COPIED = "copied"
_SILENCE = 2.5  # in which the fence row is written twice
_LIFE = 12.0  # seconds that both databases are harvested


class Copied(History):
    """The original loses nothing and doubles nothing but what is in both databases. Nothing that is not visible is
    deleted from either. A copy that Postgres alone knows for one never disturbs the original, which goes on.

    A copy of the files that knows as much as the ledger can't be told from the original. Its leader may publish what
    was in both; then one of the two notices the other. And it takes for its own what the original published before the
    fence row was written again: the ids may be those of the copy's own records, which are purged then. While both are
    harvested at once, a transaction of the copy's may keep consumers for a while from what the original has published.
    """

    copy: World
    as_template = False

    async def run(self) -> list[str]:
        random = self.world.random
        self.as_template, is_calm, is_idle = (random.random() < 0.5 for _ in range(3))
        if is_calm:
            self.world.network.trouble = 0.0
        self._start()
        self._start()
        original = Applications(self.world, transactions=_TRANSACTIONS)
        working = [asyncio.create_task(original.run()), asyncio.create_task(original.flush_now_and_then())]
        if is_idle:
            await working[0]
            await self.drain()
            await asyncio.sleep(_SILENCE)
        else:
            await asyncio.sleep(1 + 6 * random.random())
        await self._while_up(self._copy)
        before = self._views()

        async def go_on() -> None:  # after what it has under way, for writers of a key take turns
            await working[0]
            await Applications(self.world, transactions=_TRANSACTIONS, values="later").run()

        copied = Applications(self.copy, transactions=_TRANSACTIONS, values=_COPIED)
        working += [asyncio.create_task(writing) for writing in (go_on(), copied.run())]
        working.append(asyncio.create_task(copied.flush_now_and_then()))
        if not is_idle and random.random() < 0.5:
            await asyncio.sleep(2 * _SILENCE)  # the ledger tells by then that the fence row was written again
        is_told = self.as_template or self._is_behind()
        members = [Member(self.copy, self.design)]
        if is_calm:
            await asyncio.sleep(_LIFE)
        else:
            await self._disturb()
        disturbed = self._views() - before if is_calm else 0
        await self._heal()
        await asyncio.gather(working[0], working[2], working[3])
        found = await self.end()
        for member in members:
            if member in self.copy.members:
                member.kill()
        for task in working:
            task.cancel()
        if disturbed and is_told:
            found.append(f"production was disturbed: {disturbed} views since the copy is harvested")
        return found

    async def _while_up(self, act: object) -> None:
        """A copy from before the first term knows of no history that could be another."""
        while not (self.world.database.up and self.world.database.state.fence.begun_view):
            await asyncio.sleep(0.1)
        assert callable(act)
        act()

    def _copy(self) -> None:
        self.copy = self.world.beside(self.world.database.copied(as_template=self.as_template))
        self._shared = {row.record.value for row in self.copy.database.state.rows.values()}
        self._fence = self.copy.database.state.fence
        self._shared |= {row.record.value for rows in self.copy.database.state.open.values() for row in rows}

    def _is_behind(self) -> bool:
        """Whether the ledger knows of more than the copy."""
        heads = [record for record in self.world.broker.partition(LEDGER).committed() if record.key == HEAD]
        return bool(heads) and json.loads(heads[-1].value)["beats"] > self.copy.database.state.fence.beats

    def _untold(self) -> set[int]:
        """The ids that the original published since the copy was made, and before it wrote the fence row again."""
        if self.as_template:
            return set()
        ledger = self.world.broker.partition(LEDGER)
        told = [
            (json.loads(one.value), one)
            for one in (*ledger.compacted, *ledger.records)
            if one.value and one.transaction is not None and one.transaction.committed
        ]
        view, beats = str(self._fence.begun_view), self._fence.beats
        untold = [one.transaction for head, one in told if one.key == HEAD and head["beats"] <= beats]
        entries = [entry for entry, one in told if one.key != HEAD and one.transaction in untold]
        return {
            number
            for entry in entries
            if entry["view"] == view and entry["batch"] > self._fence.witness.batch
            for number in expanded(entry["runs"])
        }

    def _held_back(self) -> set[str]:
        """The records that could be read only once a transaction of the copy's before them had ended."""
        held: set[str] = set()
        if self.as_template:
            return held
        for place, partition in self.world.broker.partitions.items():
            freed = set()  # when such transactions ended
            for record in partition.records if place != LEDGER else ():
                readable_at = partition.readable_at[record.offset]
                if record.value[3].startswith(_COPIED):
                    freed.add(readable_at)
                elif readable_at in freed:
                    held.add(record.value[3])
        return held

    def _views(self) -> int:
        return sum(event.name == "view" for member in self.members for event in member.events)

    def has_ended(self) -> bool:
        return super().has_ended() or self._has_noticed()

    def _has_noticed(self) -> bool:
        return any(True for member in self.members for _ in history_errors(member))

    def judge(self, *, drained: bool) -> list[str]:
        original, broker = self.world.database, self.world.broker
        noticed = self._has_noticed()
        found = complaints(
            original,
            broker,
            drained=drained and not noticed,
            others=[self.copy.database],
            again={} if self.as_template else dict.fromkeys(self._shared, 1),
        )
        held = self._held_back()
        excused = {f"purged unpublished: {value}" for value in held}
        excused |= {f"false watermark: {value} was not visible yet" for value in held}
        found = [complaint for complaint in found if complaint not in excused]
        found += [
            f"{complaint} (in the copy)"
            for complaint in purged_unpublished(self.copy.database, seen(broker), but=self._untold())
        ]
        if not drained:
            found.append(f"stuck: {len(original.state.rows)} records left")
        if noticed and self.as_template:
            found.append("production was disturbed: it was halted for the sake of a copy")
        return found + self.bugs()
