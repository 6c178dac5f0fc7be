"""The judge of a history: what was stashed, against what a consumer saw.

It knows nothing of how records get from one to the other. At least once means: nothing is lost, nothing comes that was
never stashed, and of each topic and key the *first* sightings come in the order in which the records were stashed. A
record may come again, for then it only repeats what was seen; a record that comes for the first time after a later one
of its key breaks the order, and so does a key that moves to another partition, for no consumer sees an order there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Lane = tuple[str, str | bytes]
"""A topic and a key: within one, order counts."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record as a consumer saw it; `record` is what tells it from all others of its lane."""

    lane: Lane
    record: Hashable
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The faults, in words, a line a record; and how many sightings only repeated earlier ones, which is allowed."""

    lost: tuple[str, ...] = ()
    out_of_order: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    duplicates: int = 0

    @property
    def complaints(self) -> tuple[str, ...]:
        return self.lost + self.out_of_order + self.foreign

    def __str__(self) -> str:
        found = {"lost": self.lost, "out of order": self.out_of_order, "foreign": self.foreign}
        said = [f"{len(lines)} {what}: {'; '.join(lines[:_SHOWN])}" for what, lines in found.items() if lines]
        return "\n".join([*said, f"{self.duplicates} duplicates"])


def judge(stashed: Mapping[Lane, Sequence[Hashable]], seen: Iterable[Sighting]) -> Judgement:
    """Hold what was seen, in the order of each partition, against what was stashed, in the order of each lane."""
    places = {lane: {record: place for place, record in enumerate(records)} for lane, records in stashed.items()}
    first_seen: dict[Lane, set[Hashable]] = {lane: set() for lane in stashed}
    latest: dict[Lane, int] = {}
    partitions: dict[Lane, int] = {}
    out_of_order, foreign, duplicates = [], [], 0
    for sighting in seen:
        lane, record = sighting.lane, sighting.record
        if lane not in places or record not in places[lane]:
            foreign.append(f"{record} of {lane}")
            continue
        if partitions.setdefault(lane, sighting.partition) != sighting.partition:
            out_of_order.append(f"{record} of {lane} in partition {sighting.partition}, not {partitions[lane]}")
        if record in first_seen[lane]:
            duplicates += 1
            continue
        first_seen[lane].add(record)
        place = places[lane][record]
        if place < latest.get(lane, -1):
            out_of_order.append(f"{record} of {lane} after {stashed[lane][latest[lane]]}")
        latest[lane] = max(place, latest.get(lane, -1))
    lost = [
        f"{record} of {lane}"
        for lane, records in stashed.items()
        for record in records
        if record not in first_seen[lane]
    ]
    return Judgement(tuple(lost), tuple(out_of_order), tuple(foreign), duplicates)


def came_back(leaders: Iterable[Hashable]) -> list[Hashable]:
    """The leaders that acted again after another had; `leaders` are in the order in which they acted on a table."""
    succeeded, found, present = set[Hashable](), [], None
    for leader in leaders:
        if leader != present:
            succeeded.add(present)
            present = leader
            if leader in succeeded:
                found.append(leader)
    return found
