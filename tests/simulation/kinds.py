"""The kinds of histories that are simulated, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.clustered import (
    Attached,
    AttachedShards,
    Clustered,
    ClusteredLate,
    ClusteredPoisoned,
    ClusteredSpanning,
    Detached,
    DetachedShards,
    Exchanged,
    Forsaken,
    Promoted,
)
from simulation.copied import Copied
from simulation.histories import History, Outcome, simulated
from simulation.late_requests import LateRequests
from simulation.log import ReconfiguredLog
from simulation.other_histories import Adopted, AdoptedExchanges, AdoptedMidway, OtherHistory, Restored
from simulation.poisoned import Poisoned
from simulation.sharded import SHARDS, ManyShards, Resharded, ReshardedPoisoned
from simulation.sick_partitions import SickPartitions
from simulation.spanning import Spanning
from simulation.traced import traced
from simulation.world import SOUND, Design, Member


class ChangingModes(History):
    """Some members harvest exactly once, others at least once: what one leaves under way the next one has to settle."""

    def _start(self) -> None:
        mode = self.world.random.choice(("exactly_once", "at_least_once"))
        if len(self.world.members) < 3:
            self.members.append(Member(self.world, replace(self.design, delivery=mode)))


@dataclass(frozen=True, slots=True)
class Kind:
    """A design, and what befalls it; of about so many seeds that are asked for, one is simulated."""

    design: Design = SOUND
    history: type[History] = History
    one_of: int = 1

    @property
    def every(self) -> int:
        """The step from one seed to the next. It is odd: seeds that are a multiple of eight apart have the same
        latency, and the same amount of trouble (`simulation.histories.simulated`).
        """
        return self.one_of | 1


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
    "copied": Kind(history=Copied, one_of=8),
    "poisoned": Kind(history=Poisoned, one_of=4),
    "poisoned_atomic": Kind(Design(atomic=True), Poisoned, one_of=8),
    "poisoned_at_least_once": Kind(Design(delivery="at_least_once"), Poisoned, one_of=8),
    "sick_partitions": Kind(history=SickPartitions, one_of=4),
    "sick_partitions_atomic": Kind(Design(atomic=True), SickPartitions, one_of=8),
    "changing_modes": Kind(Design(delivery="at_least_once"), ChangingModes, one_of=8),
    "at_least_once": Kind(Design(delivery="at_least_once"), one_of=8),
    "sharded": Kind(Design(shards=SHARDS["sharded"]), ManyShards, one_of=8),
    "resharded": Kind(Design(shards=SHARDS["resharded"]), Resharded, one_of=6),
    "resharded_poisoned": Kind(Design(shards=SHARDS["resharded_poisoned"]), ReshardedPoisoned, one_of=8),
    "clustered": Kind(Design(clusters=2), Clustered, one_of=8),
    "clustered_late_requests": Kind(Design(clusters=2), ClusteredLate, one_of=8),
    "clustered_reconfigured": Kind(Design(clusters=2, transactional_log=ReconfiguredLog), ClusteredLate, one_of=16),
    "clustered_atomic": Kind(Design(atomic=True, clusters=2), ClusteredSpanning, one_of=16),
    "promoted": Kind(Design(clusters=3), Promoted, one_of=8),
    "attached": Kind(Design(clusters=3), Attached, one_of=4),
    "attached_shards": Kind(Design(clusters=2, shards=SHARDS["attached_shards"]), AttachedShards, one_of=8),
    "detached": Kind(Design(clusters=2, detach_after=1), Detached, one_of=8),
    "detached_shards": Kind(
        Design(clusters=2, detach_after=1, shards=SHARDS["detached_shards"]), DetachedShards, one_of=8
    ),
    "exchanged": Kind(Design(clusters=2), Exchanged, one_of=16),
    "forsaken": Kind(Design(clusters=2), Forsaken, one_of=8),
    "clustered_poisoned": Kind(Design(clusters=2), ClusteredPoisoned, one_of=8),
    "traced": Kind(traced(), Poisoned, one_of=8),
    "traced_at_least_once": Kind(traced(delivery="at_least_once"), Poisoned, one_of=8),
}


def lived(kind: str, seed: int) -> Outcome:
    """Live through one history."""
    return simulated(seed, KINDS[kind].design, KINDS[kind].history)


def complaints_of(kind: str, seeds: list[int]) -> list[tuple[int, list[str]]]:
    """The seeds whose histories have gone wrong, and what was wrong in them."""
    outcomes = (lived(kind, seed) for seed in seeds)
    return [(outcome.seed, outcome.complaints) for outcome in outcomes if outcome.complaints]
