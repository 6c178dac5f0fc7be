"""Where a consumer group has its home, and which positions are to be committed elsewhere. Decisions only.

The home is the cluster where somebody other than us changed the group's offset last. A *sync point* is a pair of
positions on two clusters that we made equal: the newest mark tells it. An offset is *settled* if we committed it, or if
it is that of a sync point; any other one is *news*. News on one cluster makes it the home. With news on two, there are
two homes. Then nothing is committed, unless the group reads on one of them only, and has passed there what it had read
on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.translation import Translation, Why
from airflow_outbox.values.extents import TopicAndPartition

Translate = Callable[[str, str, TopicAndPartition, int], Translation | None]
"""Where an offset of a place on one cluster (the first) is on another: never ahead. None: nobody can tell now."""

REFRESHED_AFTER_MS = 86_400_000
"""Kafka forgets the offsets of a group without members after a while: seven days, unless a broker is set otherwise."""


@dataclass(frozen=True, slots=True)
class Side:
    """A group on one cluster: what is committed, the newest marks that are known, whether it has members, and the ids
    that topics have there now.
    """

    committed: Mapping[TopicAndPartition, Committed] = field(default_factory=dict)
    marks: Mapping[TopicAndPartition, Mark] = field(default_factory=dict)
    has_members: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def topic_id(self, place: TopicAndPartition) -> str:
        """The id of a place's topic as a mark has it."""
        return self.topic_ids.get(place[0], "-")


@dataclass(frozen=True, slots=True)
class Decision:
    """A group's home, and the commits that are due.

    `home` is None where it has no offsets, or two homes: then `homes` names them. `commits` are the marks to commit, by
    cluster. `waiting` are the clusters where the group has members, so that nothing can be committed there.
    """

    home: str | None = None
    homes: tuple[str, ...] = ()
    commits: Mapping[str, Mapping[TopicAndPartition, Mark]] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _SyncPoint:
    here: int
    there: int
    at: int


def decide(sides: Mapping[str, Side], translate: Translate, *, now: int, away: Collection[str] = ()) -> Decision:
    """Decide about a group, given its sides by cluster. `now` is the time in milliseconds since 1970. `away` are the
    clusters that could not be asked.
    """
    group = _Group(sides, translate, away)
    news = {cluster: [*group.news(cluster)] for cluster in sides}
    changed = [cluster for cluster, places in news.items() if places]
    if len(changed) > 1:
        changed = [home for home in changed if group.passes(home, {each: news[each] for each in changed})] or changed
    if len(changed) > 1:
        return Decision(homes=tuple(sorted(changed)))
    home = changed[0] if changed else group.last_home()
    return Decision() if home is None else group.follow(home, now)


def follow(sides: Mapping[str, Side], home: str, translate: Translate, *, now: int) -> Decision:
    """Decide as if `home` were the only home, as an operator wants it: also over positions that others committed."""
    return _Group(sides, translate).follow(home, now)


class _Group:
    def __init__(self, sides: Mapping[str, Side], translate: Translate, away: Collection[str] = ()) -> None:
        self._sides = sides
        self._translate = translate
        self._away = away

    def news(self, cluster: str) -> Iterator[TopicAndPartition]:
        """The partitions where somebody else has changed the offset since the last sync point."""
        for place, committed in self._sides[cluster].committed.items():
            points = (self._sync_point(cluster, other, place) for other in self._sides if other != cluster)
            settled = (point is not None and point.here == committed.offset for point in points)
            if committed.mark is None and not any(settled):
                yield place

    def passes(self, home: str, news: Mapping[str, list[TopicAndPartition]]) -> bool:
        """Whether the group reads on `home` only, and has read there whatever is news elsewhere."""
        if any(side.has_members != (cluster == home) for cluster, side in self._sides.items()):
            return False
        return all(
            self._has_passed(home, cluster, place)
            for cluster, places in news.items()
            if cluster != home
            for place in places
        )

    def _has_passed(self, home: str, cluster: str, place: TopicAndPartition) -> bool:
        """Whether the group went forward on `cluster`, and then further on `home`. A rewind is no way forward."""
        there, here = self._sides[cluster].committed[place], self._sides[home].committed.get(place)
        point = self._sync_point(cluster, home, place)
        if here is None or point is None or there.offset < point.here:
            return False
        found = self._translate(cluster, home, place, there.offset)
        if found is None or found.offset > here.offset:
            return False
        return found.why is Why.WITHIN or (found.why is Why.AFTER and found.again is not None)  # else it may be too low

    def last_home(self) -> str | None:
        """The cluster from which a position was replicated last."""
        marks = [mark for side in self._sides.values() for mark in side.marks.values() if mark.source in self._sides]
        return max(marks, key=lambda mark: mark.at).source if marks else None

    def follow(self, home: str, now: int) -> Decision:
        commits: dict[str, Mapping[TopicAndPartition, Mark]] = {}
        waiting = []
        for cluster, side in self._sides.items():
            if cluster == home:
                continue
            due = dict(
                mark
                for place in self._sides[home].committed
                if (mark := self._due(home, cluster, place, now)) is not None
            )
            if due and side.has_members:
                waiting.append(cluster)
            elif due:
                commits[cluster] = due
        return Decision(home=home, commits=commits, waiting=tuple(waiting))

    def _due(
        self, home: str, cluster: str, place: TopicAndPartition, now: int
    ) -> tuple[TopicAndPartition, Mark] | None:
        """The mark to commit on `cluster`; None where it has the position."""
        here, there = self._sides[home].committed[place].offset, self._sides[cluster].committed.get(place)
        point = self._sync_point(home, cluster, place)
        found = self._translate(home, cluster, place, here)
        if found is None or self._is_from_away(home, cluster, place):
            return None
        wanted = found.offset
        if point is not None and here >= point.here:  # without a rewind, nothing goes back
            passed = there is not None and there.mark is None and self._has_passed(home, cluster, place)
            wanted = max(wanted, point.there, there.offset if passed and there is not None else 0)
        if (
            point is not None
            and there is not None
            and (point.here, point.there, wanted) == (here, there.offset, there.offset)
            and (there.mark is None or now - there.mark.at <= REFRESHED_AFTER_MS)
        ):
            return None
        known = [side.marks[place].at for side in (self._sides[home], self._sides[cluster]) if place in side.marks]
        at = max(now, *(at + 1 for at in known)) if known else now  # clocks may be set back
        ids = self._sides[home].topic_id(place), self._sides[cluster].topic_id(place)
        return place, Mark(home, here, wanted, at, *ids)

    def _is_from_away(self, home: str, cluster: str, place: TopicAndPartition) -> bool:
        """Whether the position on `cluster` came from a cluster that can't be asked now, and `home` lacks it. Then
        nobody can tell whether the group read on `home` before or after.
        """
        mark, own = self._sides[cluster].marks.get(place), self._sides[home].marks.get(place)
        if mark is None or mark.source not in self._away:
            return False
        return (
            own is None or own.source != mark.source or (own.at < mark.at and own.source_offset != mark.source_offset)
        )

    def _sync_point(self, here: str, there: str, place: TopicAndPartition) -> _SyncPoint | None:
        """The newest one of two clusters, of the topics that they have now."""
        found = []
        if (mark := mark_from(self._sides, here, there, place)) is not None:
            found.append(_SyncPoint(mark.source_offset, mark.offset, mark.at))
        if (mark := mark_from(self._sides, there, here, place)) is not None:
            found.append(_SyncPoint(mark.offset, mark.source_offset, mark.at))
        return max(found, key=lambda point: point.at, default=None)


def mark_from(sides: Mapping[str, Side], source: str, cluster: str, place: TopicAndPartition) -> Mark | None:
    """Return the newest mark on `cluster` if it is from `source`, and both have the same topic since."""
    mark = sides[cluster].marks.get(place)
    if mark is None or mark.source != source:
        return None
    ids = sides[source].topic_id(place), sides[cluster].topic_id(place)
    return mark if (mark.source_id, mark.topic_id) == ids else None
