"""The kinds of histories that are simulated, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from simulation.copied import Copied
from simulation.histories import History, Outcome, simulated
from simulation.late_requests import LateRequests
from simulation.log import ReconfiguredLog
from simulation.other_histories import Adopted, AdoptedExchanges, AdoptedMidway, OtherHistory, Restored
from simulation.poisoned import Poisoned
from simulation.sick_partitions import SickPartitions
from simulation.spanning import Spanning
from simulation.world import SOUND, Design, Member


class ChangingModes(History):
    """Some members harvest exactly once, others at least once: what one leaves under way the next one has to settle."""

    def _start(self) -> None:
        mode = self.world.random.choice(("exactly_once", "at_least_once"))
        if len(self.world.members) < 3:
            self.members.append(Member(self.world, replace(self.design, delivery=mode)))


@dataclass(frozen=True, slots=True)
class Kind:
    """A design, and what befalls it; of so many seeds that are asked for, one is simulated."""

    design: Design = SOUND
    history: type[History] = History
    one_of: int = 1


KINDS = {
    "exactly_once": Kind(),
    "atomic": Kind(Design(atomic=True), Spanning, one_of=4),
    "late_requests": Kind(history=LateRequests, one_of=4),
    "reconfigured": Kind(Design(transactional_log=ReconfiguredLog), one_of=8),
    "other_histories": Kind(history=OtherHistory, one_of=4),
    "restored": Kind(history=Restored, one_of=8),
    "adopted": Kind(history=Adopted, one_of=8),
    "adopted_exchanges": Kind(history=AdoptedExchanges, one_of=8),
    "adopted_midway": Kind(history=AdoptedMidway, one_of=8),
    "copied": Kind(history=Copied, one_of=4),
    "poisoned": Kind(history=Poisoned, one_of=4),
    "poisoned_atomic": Kind(Design(atomic=True), Poisoned, one_of=8),
    "poisoned_at_least_once": Kind(Design(delivery="at_least_once"), Poisoned, one_of=8),
    "sick_partitions": Kind(history=SickPartitions, one_of=4),
    "sick_partitions_atomic": Kind(Design(atomic=True), SickPartitions, one_of=8),
    "changing_modes": Kind(Design(delivery="at_least_once"), ChangingModes, one_of=8),
    "at_least_once": Kind(Design(delivery="at_least_once"), one_of=4),
}


def lived(kind: str, seed: int) -> Outcome:
    """Live through one history. What is counted in classes begins anew, so that it depends on nothing but the seed."""
    ReconfiguredLog.number = count()
    return simulated(seed, KINDS[kind].design, KINDS[kind].history)


def complaints_of(kind: str, seeds: list[int]) -> list[tuple[int, list[str]]]:
    """The seeds whose histories have gone wrong, and what was wrong in them."""
    outcomes = (lived(kind, seed) for seed in seeds)
    return [(outcome.seed, outcome.complaints) for outcome in outcomes if outcome.complaints]
