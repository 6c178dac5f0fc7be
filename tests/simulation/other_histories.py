"""Databases and ledgers that turn out to be of another history: restored, exchanged, set back, lost.

Whatever happens, nothing is doubled, and nothing is deleted that is not visible. Either a member notices, and nothing
moves any more; or there was nothing to notice, and all goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from simulation.checker import complaints
from simulation.histories import History, history_errors
from simulation.kafka import LEDGER, Partition


class OtherHistory(History):
    """A history in the middle of which the database, or the ledger, becomes another."""

    changed = False

    async def _disturb(self) -> None:
        changing = self.world.random.choice(
            (self._truncate, self._make_anew, self._set_back, self._restore, self._restore, self._lose, self._shorten)
        )
        disturbing = asyncio.create_task(super()._disturb())
        await asyncio.sleep(4 + 12 * self.world.random.random())
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {changing.__name__.strip('_')}")
        changing()
        self.changed = True
        await disturbing

    def judge(self, *, drained: bool) -> list[str]:
        found = [*complaints(self.world.database, self.world.broker, drained=False), *self.bugs()]
        noticed = any(True for _ in self._noticed())
        if not drained and not noticed:
            found.append("stuck, and nobody says why")
        return [complaint for complaint in found if not complaint.startswith("out of order")]

    def has_ended(self) -> bool:
        # A transaction whose PREPARE was restored, and that had ended since, nobody will end again.
        return not self.world.database.state.rows or any(True for _ in self._noticed())

    def _noticed(self) -> Iterator[str]:
        for member in self.members:
            yield from history_errors(member)

    def _truncate(self) -> None:
        self.world.database.truncate_and_restart()

    def _make_anew(self) -> None:
        self.world.database.make_anew()

    def _set_back(self) -> None:
        database = self.world.database
        database.set_back(database.state.last_drawn * self.world.random.randrange(10) // 10)

    def _restore(self) -> None:
        """A base backup; or the replica that was promoted."""
        database, random = self.world.database, self.world.random
        back = random.choice((3, 30, 300))
        database.restore(max(database.flushed - random.randrange(back), 0), new_timeline=random.random() < 0.5)

    def _lose(self) -> None:
        self.world.broker.lose_ledger()

    def _shorten(self) -> None:
        """Unclean election: the ledger's last records are gone, and with them one that Postgres knows of.

        (Where Postgres does not know of any that is gone, nobody can notice.)
        """
        old = self.world.broker.partition(LEDGER)
        new = self.world.broker.partitions[LEDGER] = Partition()
        new.end = self.world.random.randrange(self.world.database.state.fence.witness.offset + 1)
        new.records = [record for record in old.records if record.offset < new.end]
