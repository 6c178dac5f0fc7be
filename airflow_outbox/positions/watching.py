"""One cluster as the replicator sees it: its groups and what they have committed, its logs, its index of extents."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.positions.groups import ConsumerGroups, GroupHasChangedError, are_meant
from airflow_outbox.positions.homes import Side
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.translation import ExtentIndex
from airflow_outbox.values.extents import TopicAndPartition, TopicPartitionId

_OWN = "airflow-outbox."


class RefreshableIndex(ExtentIndex, Protocol):
    """An index of extents that looks for new ones when it is told to."""

    def refresh(self) -> None:
        """Take in what has come. Raises KafkaError."""

    def close(self) -> None:
        """Let go of its connections."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a cluster now: which one it is, and how far it reaches."""

    where: TopicPartitionId
    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True)
class _Known:
    """The positions of a group as they were read last, or committed by us since."""

    committed: Mapping[TopicAndPartition, Committed]
    had_members: bool
    at: float


class WatchedCluster:
    """A cluster's groups and logs. Methods raise KafkaError where the cluster does not answer.

    Beside each group, another one keeps a copy of the marks that were committed last: consumers overwrite the group's
    own. So a replicator that starts knows what an earlier one did.
    """

    def __init__(self, groups: ConsumerGroups, index: RefreshableIndex, *, copies: str) -> None:
        """`copies` is how the names of the groups with copies begin."""
        self._groups = groups
        self._copies = copies
        self._marks: dict[str, dict[TopicAndPartition, Mark]] = {}
        self._known: dict[str, _Known] = {}
        self._known_topics: set[str] = set()
        self.index = index

    def members_by_group(self, patterns: Collection[str]) -> dict[str, bool]:
        """Return the groups that are meant, and whether they have members; among them those known by copies only."""
        listed = self._groups.members_by_group()
        copied = [group.removeprefix(self._copies) for group in listed if group.startswith(self._copies)]
        others = [group for group in listed if not group.startswith(_OWN)]
        unknown = [group for group in are_meant(copied, patterns) if group not in self._marks]
        if unknown:
            self._take_copies(unknown)
        return {group: listed[group] for group in are_meant(others, patterns)}

    def sides(
        self, members: Mapping[str, bool], *, resting: Collection[str] = (), rest: float = 0.0
    ) -> dict[str, Side | KafkaError]:
        """Return what these groups have committed here, or why that is not known.

        A group that is `resting` and has no members is read again only if the last time was `rest` seconds ago.
        """
        for group in self._known.keys() - members.keys():
            del self._known[group]
        due_before = time.monotonic() - rest
        rested = {group for group in resting if self._rests(group, members, due_before)}
        found: dict[str, Side | KafkaError] = {}
        for group, answer in self._read(group for group in members if group not in rested).items():
            if isinstance(answer, KafkaError):
                found[group] = answer
            else:
                self._known[group] = _Known(answer, members[group], time.monotonic())
        return {
            group: found.get(group) or Side(self._known[group].committed, self.marks(group), has_members)
            for group, has_members in members.items()
        }

    def marks(self, group: str) -> dict[TopicAndPartition, Mark]:
        """Return the newest marks that are known of a group here."""
        return dict(self._marks.get(group, {}))

    def partitions(self, places: Iterable[TopicAndPartition]) -> dict[TopicAndPartition, Partition]:
        """Return these partitions as they are now, without those that are not here."""
        wanted = set(places)
        ids = self._groups.topic_ids({topic for topic, _ in wanted})
        there = [(topic, partition) for topic, partition in wanted if topic in ids and partition < ids[topic][1]]
        return {
            place: Partition(TopicPartitionId(place[0], ids[place[0]][0], place[1]), offsets)
            for place, offsets in self._groups.offsets_of(there).items()
        }

    def topics_with_batches(self, partitions: Iterable[Partition]) -> set[str]:
        """Return which topics get records from the outbox, as far as these partitions tell. Call `refresh` before."""
        for each in partitions:
            if each.where.topic not in self._known_topics and self._has_batches(each):
                self._known_topics.add(each.where.topic)
        return self._known_topics

    def offset_at(self, place: TopicAndPartition, moment: int) -> int:
        """Return the first offset of a partition from a time on, in milliseconds since 1970, or its end."""
        return self._groups.offset_at(place, moment)

    def changed(self, groups: Collection[str]) -> dict[str, KafkaError]:
        """Read again what these groups have committed. Return why positions must not be committed for some of them: not
        known, or not what it was when it was read last.
        """
        listed = self._groups.members_by_group()
        found = self._read(group for group in groups if group in listed)
        failed: dict[str, KafkaError] = {}
        for group in groups:
            answer = found.get(group, {})
            if isinstance(answer, KafkaError):
                failed[group] = answer
            elif answer != self.committed(group):
                failed[group] = GroupHasChangedError(f"group {group} has changed meanwhile")
                self._known.pop(group, None)
            elif group in self._known:
                self._known[group] = replace(self._known[group], at=time.monotonic())
        return failed

    def committed(self, group: str) -> Mapping[TopicAndPartition, Committed]:
        """Return what a group had committed when it was read last, or by what was committed for it since."""
        return self._known[group].committed if group in self._known else {}

    def commit(self, due: Mapping[str, Mapping[TopicAndPartition, Mark]]) -> dict[str, KafkaError | None]:
        """Commit positions for groups, and keep copies of the marks. Return by group why that failed, or None.

        Ask right before what has `changed`: Kafka would take a commit over whatever is there.
        """
        answers = self._groups.commit(due)
        done = {group: marks for group, marks in due.items() if answers[group] is None}
        for group in due.keys() - done.keys():  # nobody knows whether they are committed
            self._known.pop(group, None)
        for group, marks in done.items():
            self._remember(group, marks)
            committed = {place: Committed(mark.offset, mark) for place, mark in marks.items()}
            self._known[group] = _Known({**self.committed(group), **committed}, False, time.monotonic())
        kept = self._groups.commit({self._copies + group: marks for group, marks in done.items()})
        return answers | {group: kept[self._copies + group] for group in done}

    def close(self) -> None:
        self.index.close()

    def _rests(self, group: str, members: Mapping[str, bool], due_before: float) -> bool:
        known = self._known.get(group)
        return known is not None and not (known.had_members or members.get(group, True)) and known.at > due_before

    def _read(self, groups: Iterable[str]) -> dict[str, dict[TopicAndPartition, Committed] | KafkaError]:
        found = self._groups.committed([*groups])
        for group, answer in found.items():
            if isinstance(answer, KafkaError):
                self._known.pop(group, None)
            else:
                self._remember(group, _marks_of(answer))
        return found

    def _has_batches(self, partition: Partition) -> bool:
        return any(
            (around := self.index.at_offset(shard, partition.where, partition.offsets.end)).upto or around.after
            for shard in range(self.index.shards)
        )

    def _take_copies(self, groups: Collection[str]) -> None:
        for copy, answer in self._groups.committed([self._copies + group for group in groups]).items():
            if not isinstance(answer, KafkaError):
                group = copy.removeprefix(self._copies)
                self._marks.setdefault(group, {})
                self._remember(group, _marks_of(answer))

    def _remember(self, group: str, marks: Mapping[TopicAndPartition, Mark]) -> None:
        known = self._marks.setdefault(group, {})
        for place, mark in marks.items():
            if place not in known or known[place].at < mark.at:
                known[place] = mark


def _marks_of(committed: Mapping[TopicAndPartition, Committed]) -> dict[TopicAndPartition, Mark]:
    return {place: each.mark for place, each in committed.items() if each.mark is not None}
