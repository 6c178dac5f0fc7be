"""The replicator: it looks at groups on all clusters, again and again, and commits their positions where they are due.

Several replicators at a time do no harm: they decide the same, and commit it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_outbox.errors import KafkaError
from airflow_outbox.positions.groups import GroupHasChangedError, GroupHasMembersError
from airflow_outbox.positions.homes import Decision, Side, decide, follow
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.translation import Source, Target, Translation, translate
from airflow_outbox.positions.watching import Partition, WatchedCluster
from airflow_outbox.values.extents import TopicAndPartition

Answer = TypeVar("Answer")
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class GroupNews:
    """A group after a look.

    `decision` tells its home and what was due. `failure` is why something could not be read or committed.
    `not_there` are partitions that another cluster lacks, with its name.
    """

    decision: Decision = field(default_factory=Decision)
    sides: Mapping[str, Side] = field(default_factory=dict)
    failure: str | None = None
    not_there: tuple[tuple[str, TopicAndPartition], ...] = ()

    @property
    def synced_at(self) -> float | None:
        """When a position was committed last, in seconds since 1970; None: never."""
        times = [mark.at for side in self.sides.values() for mark in side.marks.values()]
        return max(times) / 1000 if times else None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of one look: groups by name, the clusters that could not be used and why, and what was done."""

    groups: Mapping[str, GroupNews]
    away: Mapping[str, str]
    commits: int = 0
    failures: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A group's sides as they were when all that was due was done, and until when that holds."""

    sides: Mapping[str, tuple[Mapping[TopicAndPartition, Committed], bool]]
    news: GroupNews
    wait: float
    until: float


class Translator:
    """Translates the positions of one look. Each partition is as it was when the look asked for it."""

    def __init__(
        self, clusters: Mapping[str, WatchedCluster], partitions: Mapping[str, Mapping[TopicAndPartition, Partition]]
    ) -> None:
        self._clusters = clusters
        self._partitions = partitions

    def translation(self, source: str, target: str, place: TopicAndPartition, offset: int) -> Translation | None:
        """Return where an offset is on another cluster, and why; None where a cluster lacks the partition. Raises
        KafkaError.
        """
        here, there = self._partitions[source].get(place), self._partitions[target].get(place)
        if here is None or there is None:
            return None
        return translate(
            offset,
            Source(here.where, here.offsets.end, self._clusters[source].index),
            Target(there.where, there.offsets.start, there.offsets.stable, self._clusters[target].index),
        )

    @property
    def clusters(self) -> Collection[str]:
        """The clusters that could be asked."""
        return self._partitions.keys()

    def topic_ids(self, cluster: str) -> dict[str, str]:
        """Return the ids of topics on a cluster, those whose partitions answer."""
        return {topic: each.where.topic_id for (topic, _), each in self._partitions[cluster].items()}

    def lacks(self, cluster: str, place: TopicAndPartition) -> bool:
        """Whether a cluster lacks a partition."""
        return place not in self._partitions[cluster]


class Replicator:
    """Keeps the positions of the groups that `patterns` mean in step between clusters. One thread at a time.

    The class is large because it shows a look from listing to commit in one place.
    """

    def __init__(
        self,
        clusters: Mapping[str, WatchedCluster],
        patterns: Sequence[str],
        *,
        rest: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A group without members away from its home is read again there only after `rest` seconds, and before each
        commit.
        """
        self._clusters = clusters
        self._patterns = patterns
        self._rest = rest
        self._clock = clock
        self._homes: dict[str, str | None] = {}
        self._seen: dict[str, _Seen] = {}
        self._pool = ThreadPoolExecutor(max(1, len(clusters)), thread_name_prefix="outbox-positions")

    def look(self, *, commits: bool = True) -> SyncResult:
        """Look at all groups, and commit what is due unless told not to. A failure is told, and the next look tries
        again.
        """
        begun = time.monotonic()
        away: dict[str, str] = {}
        members = self._of_each(self._clusters, lambda _, each: each.members_by_group(self._patterns), away)
        sides = self._of_each(
            members,
            lambda name, each: each.sides(members[name], resting=self._away_from_home(name), rest=self._rest),
            away,
        )
        groups = self._by_group(sides)
        for gone in () if away else self._seen.keys() - groups.keys():
            del self._seen[gone]
        now = self._clock()
        changed = {group: found for group, found in groups.items() if not self._is_as_seen(group, found, now)}
        news = {group: seen.news for group, seen in self._seen.items() if group in groups and group not in changed}
        decided = self._decided(changed, sides.keys(), away) if changed else {}
        committed, failures = self._commit(decided) if commits else (set(), 0)
        for group, each in decided.items():
            news[group] = each
            if away or each.failure is not None:  # what is not known of a cluster is asked for by the next look
                self._seen.pop(group, None)
            elif not each.decision.commits:
                self._note(group, _as_seen(groups[group]), each, now)
            else:
                self._seen.pop(group, None)
                if all((cluster, group) in committed for cluster in each.decision.commits):
                    self._note(group, self._expected(group, groups[group], each), _in_step(each), now)
        self._homes = {group: each.decision.home for group, each in news.items() if each.failure is None}
        failures += len(away) + sum(each.failure is not None for each in news.values())
        return SyncResult(news, away, len(committed), failures, time.monotonic() - begun)

    def translator(self, places: Iterable[TopicAndPartition]) -> Translator:
        """Return a translator for these partitions as they are now. Raises KafkaError."""
        away: dict[str, str] = {}
        wanted = [*places]
        partitions = self._partitions(wanted, self._clusters, away)
        for cluster, reason in away.items():
            raise KafkaError(f"cluster {cluster}: {reason}")
        return Translator(self._clusters, partitions)

    def offset_at(self, cluster: str, place: TopicAndPartition, moment: int) -> int:
        """Return the first offset of a partition from a time on, in milliseconds since 1970, or its end. Raises
        KafkaError.
        """
        return self._clusters[cluster].offset_at(place, moment)

    def follow(self, group: str, home: str) -> GroupNews:
        """Return what is due if a group's positions on `home` shall hold on all clusters, whatever is committed there.

        Raises KafkaError.
        """
        away: dict[str, str] = {}
        members = self._of_each(self._clusters, lambda _, each: each.members_by_group([group]), away)
        found = self._of_each(members, lambda name, each: each.sides(members[name]), away)
        sides = self._by_group(found).get(group, {})
        for cluster, reason in away.items():
            raise KafkaError(f"cluster {cluster}: {reason}")
        [news] = self._decided({group: sides}, self._clusters.keys(), away, home=home).values()
        for cluster, reason in away.items():
            raise KafkaError(f"cluster {cluster}: {reason}")
        if news.failure is not None:
            raise KafkaError(f"group {group}: {news.failure}")
        return news

    def commit(self, group: str, news: GroupNews, cluster: str) -> None:
        """Commit what is due on one cluster. Raises KafkaError where that fails, unless the group has changed."""
        due = Decision(news.decision.home, commits={cluster: news.decision.commits[cluster]})
        decided = {group: GroupNews(due, news.sides)}
        _, failures = self._commit(decided)
        if failures or decided[group].failure is not None:
            raise KafkaError(f"group {group}: {decided[group].failure or f'cluster {cluster} does not answer'}")

    def close(self) -> None:
        """Let go of all connections."""
        self._pool.shutdown(wait=True)
        for each in self._clusters.values():
            each.close()

    def _away_from_home(self, cluster: str) -> set[str]:
        """The groups whose home is another cluster, as the last look told."""
        return {group for group, home in self._homes.items() if home not in (None, cluster)}

    def _expected(
        self, group: str, sides: Mapping[str, Side | KafkaError], news: GroupNews
    ) -> dict[str, tuple[Mapping[TopicAndPartition, Committed], bool]]:
        """Return what the next look finds of a group after a commit of ours, unless somebody else commits."""
        return _as_seen(sides) | {
            cluster: (self._clusters[cluster].committed(group), False) for cluster in news.decision.commits
        }

    def _by_group(
        self, sides: Mapping[str, Mapping[str, Side | KafkaError]]
    ) -> dict[str, dict[str, Side | KafkaError]]:
        """Return each group's sides: on a cluster that does not know it, it has committed nothing."""
        groups = sorted({group for found in sides.values() for group in found})
        return {
            group: {
                name: found.get(group) or Side(marks=self._clusters[name].marks(group)) for name, found in sides.items()
            }
            for group in groups
        }

    def _is_as_seen(self, group: str, sides: Mapping[str, Side | KafkaError], now: float) -> bool:
        seen = self._seen.get(group)
        return seen is not None and now < seen.until and seen.sides == _as_seen(sides)

    def _note(
        self,
        group: str,
        sides: Mapping[str, tuple[Mapping[TopicAndPartition, Committed], bool]],
        news: GroupNews,
        now: float,
    ) -> None:
        """Note that nothing is due, for a while. A batch that one cluster lacked then is perhaps on it later."""
        before = self._seen.get(group)
        wait = min(_LONGEST_WAIT, 2 * before.wait) if before is not None and before.sides == sides else _FIRST_WAIT
        self._seen[group] = _Seen(sides, news, wait, now + wait)

    def _decided(
        self,
        groups: Mapping[str, Mapping[str, Side | KafkaError]],
        clusters: Iterable[str],
        away: dict[str, str],
        *,
        home: str | None = None,
    ) -> dict[str, GroupNews]:
        """Decide about groups. A cluster that can't be used now is added to `away`."""
        places = {
            place
            for sides in groups.values()
            for side in sides.values()
            if isinstance(side, Side)
            for place in side.committed
        }
        partitions = self._partitions(places, clusters, away)
        known = {
            topic
            for cluster, found in partitions.items()
            for topic in self._clusters[cluster].topics_with_batches(found.values())
        }
        translator = Translator(self._clusters, partitions)
        return {group: self._decide(sides, known, translator, home) for group, sides in groups.items()}

    def _decide(
        self, sides: Mapping[str, Side | KafkaError], topics: set[str], translator: Translator, home: str | None
    ) -> GroupNews:
        own: dict[str, Side] = {}
        for cluster, side in sides.items():
            if cluster not in translator.clusters:
                continue
            if isinstance(side, KafkaError):
                return GroupNews(failure=f"cluster {cluster}: {side}")
            own[cluster] = Side(
                {place: each for place, each in side.committed.items() if place[0] in topics},
                {place: each for place, each in side.marks.items() if place[0] in topics},
                side.has_members,
                translator.topic_ids(cluster),
            )
        away = self._clusters.keys() - own.keys()
        if home in away:
            return GroupNews(failure=f"cluster {home} does not answer")
        now = int(self._clock() * 1000)
        try:
            if home is None:
                decision = decide(own, translator.translation, now=now, away=away)
            else:
                decision = follow(own, home, translator.translation, now=now)
        except KafkaError as error:
            return GroupNews(sides=own, failure=str(error))
        lacking = [
            (cluster, place)
            for cluster in own
            for place in (own[decision.home].committed if decision.home is not None else ())
            if translator.lacks(cluster, place)
        ]
        return GroupNews(decision, own, not_there=tuple(lacking))

    def _partitions(
        self, places: Iterable[TopicAndPartition], clusters: Iterable[str], away: dict[str, str]
    ) -> dict[str, dict[TopicAndPartition, Partition]]:
        """Ask how far the partitions reach, on all clusters, and only then look for new extents. So all batches that
        consumers can reach are known.
        """
        wanted = [*places]
        found = self._of_each(clusters, lambda _, each: each.partitions(wanted), away)
        refreshed = self._of_each(found, lambda _, each: each.index.refresh(), away)
        return {cluster: found[cluster] for cluster in refreshed}

    def _commit(self, decided: dict[str, GroupNews]) -> tuple[set[tuple[str, str]], int]:
        """Commit what is due, and note in `decided` what could not be. Return what was committed, as clusters and
        groups, and how often that failed for all of a cluster's groups.

        Before, each group is read again wherever it may have changed since. One that has is left to the next look.
        """
        away: dict[str, str] = {}
        again: dict[str, list[str]] = {}
        for group, news in decided.items():
            for cluster in news.sides.keys() - {news.decision.home} if news.decision.commits else ():
                again.setdefault(cluster, []).append(group)
        changed = self._of_each(again, lambda name, each: each.changed(again[name]), away)
        left = {group for found in changed.values() for group in found}
        left |= {group for cluster in away for group in again[cluster]}
        due: dict[str, dict[str, Mapping[TopicAndPartition, Mark]]] = {}
        for group, news in decided.items():
            for cluster, marks in news.decision.commits.items() if group not in left else ():
                due.setdefault(cluster, {})[group] = marks
        answers = self._of_each(due, lambda name, each: each.commit(due[name]), away)
        done: set[tuple[str, str]] = set()
        errors: list[tuple[str, str, KafkaError | None]] = [
            (cluster, group, error)
            for each in (changed, answers)
            for cluster, found in each.items()
            for group, error in found.items()
        ]
        for cluster, group, error in errors:
            if error is None:
                done.add((cluster, group))
            elif not isinstance(error, (GroupHasMembersError, GroupHasChangedError)):  # else the next look tells
                news = decided[group]
                decided[group] = GroupNews(news.decision, news.sides, f"cluster {cluster}: {error}", news.not_there)
        return done, len(away)

    def _of_each(
        self, clusters: Iterable[str], ask: Callable[[str, WatchedCluster], Answer], away: dict[str, str]
    ) -> dict[str, Answer]:
        """Ask these clusters at the same time. One that fails is added to `away`, with the reason."""
        futures = {name: self._pool.submit(ask, name, self._clusters[name]) for name in clusters}
        found = {}
        for name, future in futures.items():
            try:
                found[name] = future.result()
            except KafkaError as error:
                away[name] = str(error)
        return found


def _as_seen(sides: Mapping[str, Side | KafkaError]) -> dict[str, tuple[Mapping[TopicAndPartition, Committed], bool]]:
    return {name: (side.committed, side.has_members) for name, side in sides.items() if isinstance(side, Side)}


def _in_step(news: GroupNews) -> GroupNews:
    """A group after all that was due is committed."""
    sides = dict(news.sides)
    for cluster, marks in news.decision.commits.items():
        committed = {place: Committed(mark.offset, mark) for place, mark in marks.items()}
        side = sides[cluster]
        sides[cluster] = replace(side, committed={**side.committed, **committed}, marks={**side.marks, **marks})
    return replace(news, decision=replace(news.decision, commits={}), sides=sides)
