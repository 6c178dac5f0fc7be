"""The replicator over clusters in memory: one of several is away, a commit fails, two replicators look in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from support.extents import OUTBOX, VIEW

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.positions.groups import ConsumerGroups, GroupHasMembersError
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.operating import (
    CanNotMoveError,
    behind,
    described,
    move,
    planned,
    why_it_may_not_move,
)
from airflow_outbox.positions.replicator import Replicator
from airflow_outbox.positions.watching import WatchedCluster
from airflow_outbox.values.extents import Around, BatchExtent, BatchId, Order, TopicAndPartition, TopicPartitionId

PLACE: TopicAndPartition = ("orders", 0)
GROUP = "app"
COPIES = "airflow-outbox.x.positions."
BATCH = BatchId(OUTBOX, 1, 0, VIEW, 1)
RECORDS = 100


@dataclass
class GroupsInMemory:
    """A cluster's groups: offsets with metadata by group, those with members, and whether it answers."""

    offsets: dict[str, dict[TopicAndPartition, tuple[int, str]]] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    is_away: bool = False
    has_no_logs: bool = False
    refuses: bool = False
    joins: bool = False
    meanwhile: Callable[[], None] | None = None
    reads_of: list[str] = field(default_factory=list)
    partitions: int = 2

    def members_by_group(self) -> dict[str, bool]:
        self._require()
        return {group: group in self.members for group in self.offsets}

    def committed(self, groups: Collection[str]) -> dict[str, dict[TopicAndPartition, Committed] | KafkaError]:
        self._require()
        self.reads_of += groups
        return {
            group: {
                place: Committed(offset, Mark.parse(metadata, offset))
                for place, (offset, metadata) in self.offsets.get(group, {}).items()
            }
            for group in groups
        }

    def commit(self, marks: Mapping[str, Mapping[TopicAndPartition, Mark]]) -> dict[str, KafkaError | None]:
        self._require()
        if self.joins or self.refuses:
            error = GroupHasMembersError("they came") if self.joins else KafkaError("no")
            return dict.fromkeys(marks, error)
        for group, wanted in marks.items():
            known = self.offsets.setdefault(group, {})
            known |= {place: (mark.offset, mark.metadata) for place, mark in wanted.items()}
        return dict.fromkeys(marks)

    def topic_ids(self, topics: Collection[str]) -> dict[str, tuple[str, int]]:
        return dict.fromkeys(topics, ("id", self.partitions))

    def offsets_of(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, PartitionOffsets]:
        self._require()
        if self.has_no_logs:
            raise KafkaError("no leader")
        if self.meanwhile is not None:
            self.meanwhile()
        return {place: PartitionOffsets(0, RECORDS + 1, RECORDS + 1) for place in places}

    def _require(self) -> None:
        if self.is_away:
            raise KafkaError("can't reach it")

    def reads(self, offset: int) -> None:
        self.offsets.setdefault(GROUP, {})[PLACE] = (offset, "")


@dataclass
class OneBatch:
    """An index that knows one batch of `orders`."""

    shards: int = 1

    def refresh(self) -> None: ...

    def close(self) -> None: ...

    def at_offset(self, shard: int, where: TopicPartitionId, offset: int) -> Around:
        return self._around(where)

    def at_batch(self, shard: int, where: TopicPartitionId, order: Order) -> Around:
        return self._around(where)

    def is_unbroken_after(self, shard: int, order: Order | None) -> bool:
        return True

    def is_whole(self, shard: int) -> bool:
        return True

    def _around(self, where: TopicPartitionId) -> Around:
        if where.topic != "orders":
            return Around(None, None)
        return Around(BatchExtent(BATCH, where, 0, RECORDS - 1, RECORDS, None, 1), None)


@pytest.fixture
def groups() -> dict[str, GroupsInMemory]:
    return {name: GroupsInMemory() for name in ("primary", "west", "north")}


def replicator_over(groups: Mapping[str, GroupsInMemory], *, rest: float = 0.0) -> Replicator:
    clusters = {
        name: WatchedCluster(cast("ConsumerGroups", each), cast("Any", OneBatch()), copies=COPIES)
        for name, each in groups.items()
    }
    return Replicator(clusters, ["*"], rest=rest)


def offsets(groups: Mapping[str, GroupsInMemory]) -> list[int | None]:
    return [each.offsets.get(GROUP, {}).get(PLACE, (None, ""))[0] for each in groups.values()]


def test_positions_follow_to_all_clusters_and_home(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    assert replicator.look().commits == 2
    assert offsets(groups) == [40, 40, 40]
    assert replicator.look().commits == 0
    groups["west"].reads(60)
    replicator.look()
    assert offsets(groups) == [60, 60, 60]
    look = replicator.look()
    assert look.groups[GROUP].decision.home == "west"
    assert why_it_may_not_move(GROUP, look, "north") is None
    assert described(GROUP, look.groups[GROUP]).startswith("app: west; primary is in step; north is in step; last")


def test_a_cluster_that_is_away_gets_positions_when_it_is_back(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    groups["west"].is_away = True
    look = replicator.look()
    assert (look.away, look.failures) == ({"west": "can't reach it"}, 1)
    assert offsets(groups) == [40, None, 40]
    assert why_it_may_not_move(GROUP, look, "north") == "cluster west: can't reach it"
    groups["west"].is_away = False
    replicator.look()
    assert offsets(groups) == [40, 40, 40]


def test_a_cluster_that_tells_no_offsets_is_told_at_each_look(groups: dict[str, GroupsInMemory]) -> None:
    """Although nothing else changes from look to look."""
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    groups["west"].has_no_logs = True
    for _ in range(3):
        look = replicator.look()
        assert look.away == {"west": "no leader"}
        assert why_it_may_not_move(GROUP, look, "west") == "cluster west: no leader"
    groups["west"].has_no_logs = False
    replicator.look()
    assert offsets(groups) == [40, 40, 40]


def test_a_commit_that_fails_is_told_and_tried_again(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    groups["west"].refuses = True
    look = replicator.look()
    assert (look.groups[GROUP].failure, look.failures) == ("cluster west: no", 1)
    groups["west"].refuses = False
    groups["west"].joins = True
    assert replicator.look().failures == 0, "members commit by themselves"
    groups["west"].joins = False
    replicator.look()
    assert offsets(groups) == [40, 40, 40]


def test_a_group_that_reads_where_it_is_due_is_shown(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    replicator.look()
    groups["primary"].reads(70)
    groups["west"].members.add(GROUP)
    look = replicator.look()
    assert behind(look.groups[GROUP], "west") == 30
    assert "west is 30 offsets behind, and stays so" in described(GROUP, look.groups[GROUP])
    assert why_it_may_not_move(GROUP, look, "north") == "group app has members on west"


def test_a_replicator_that_starts_knows_what_the_last_one_did(groups: dict[str, GroupsInMemory]) -> None:
    groups["primary"].reads(40)
    replicator_over(groups).look()
    groups["west"].reads(60)  # it has moved while nobody looked
    other = replicator_over(groups)
    assert other.look().groups[GROUP].decision.home == "west"
    assert offsets(groups) == [60, 60, 60]
    for each in groups.values():
        del each.offsets[COPIES + GROUP]
    groups["primary"].reads(80)
    groups["west"].reads(70)
    assert replicator_over(groups).look().groups[GROUP].decision.homes == ("primary", "west")
    assert offsets(groups) == [80, 70, 60]


def test_several_replicators_do_no_harm(groups: dict[str, GroupsInMemory]) -> None:
    both = [replicator_over(groups), replicator_over(groups)]
    for number in range(1, 10):
        groups["primary" if number % 2 else "west"].reads(10 * number)
        both[number % 2].look()
        both[1 - number % 2].look()
        assert offsets(groups) == [10 * number] * 3


def test_a_partition_that_is_added_on_the_other_cluster_gets_its_position(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["west"].partitions = 1
    groups["primary"].offsets[GROUP] = {PLACE: (40, ""), ("orders", 1): (30, "")}
    look = replicator.look()
    assert look.groups[GROUP].not_there == (("west", ("orders", 1)),)
    assert why_it_may_not_move(GROUP, look, "west") == "west lacks partition 1 of topic orders"
    assert offsets(groups) == [40, 40, 40]
    assert ("orders", 1) not in groups["west"].offsets[GROUP]
    groups["west"].partitions = 2
    groups["primary"].reads(50)
    look = replicator.look()
    assert look.groups[GROUP].not_there == ()
    assert groups["west"].offsets[GROUP]["orders", 1][0] == 30


def test_other_applications_topics_do_not_count(groups: dict[str, GroupsInMemory]) -> None:
    groups["primary"].reads(40)
    for name in ("primary", "west"):
        groups[name].offsets.setdefault(GROUP, {})["other", 0] = (7, "")
    replicator_over(groups).look()
    assert offsets(groups) == [40, 40, 40]
    assert ("other", 0) not in groups["north"].offsets[GROUP]


def test_nothing_is_committed_by_a_look_that_is_told_not_to(groups: dict[str, GroupsInMemory]) -> None:
    groups["primary"].reads(40)
    look = replicator_over(groups).look(commits=False)
    assert look.groups[GROUP].decision.commits["west"][PLACE].offset == 40
    assert offsets(groups) == [40, None, None]
    assert why_it_may_not_move(GROUP, look, "west") == "the position of group app is not yet on west"
    assert why_it_may_not_move("none", look, "west") == "no cluster knows the group none"


def test_a_group_that_commits_between_a_look_and_the_commit_is_left(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    groups["west"].meanwhile = lambda: groups["west"].reads(70)
    look = replicator.look()
    assert (look.failures, offsets(groups)) == (0, [40, 70, None]), "north may be due to get west's"
    groups["west"].meanwhile = None
    assert replicator.look().groups[GROUP].decision.homes == ("primary", "west")
    assert offsets(groups) == [40, 70, None]


def test_a_group_that_rests_away_from_its_home_is_read_there_before_a_commit_only(
    groups: dict[str, GroupsInMemory],
) -> None:
    replicator = replicator_over(groups, rest=3600.0)
    groups["primary"].reads(40)
    replicator.look()
    for each in groups.values():
        each.reads_of.clear()
    assert replicator.look().commits == 0
    assert [each.reads_of for each in groups.values()] == [[GROUP], [], []]
    groups["primary"].reads(50)
    assert replicator.look().commits == 2
    assert offsets(groups) == [50, 50, 50]
    assert [each.reads_of for each in groups.values()] == [[GROUP] * 2, [GROUP], [GROUP]]


def test_a_rewind_of_a_group_that_rests_is_not_overwritten(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups, rest=3600.0)
    groups["primary"].reads(40)
    replicator.look()
    groups["west"].reads(5)
    groups["primary"].reads(50)
    look = replicator.look()
    assert (look.commits, look.failures, offsets(groups)) == (0, 0, [50, 5, 40])
    assert replicator.look().groups[GROUP].decision.homes == ("primary", "west")
    assert offsets(groups) == [50, 5, 40]


def test_a_group_is_read_where_members_have_come_or_have_just_left(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups, rest=3600.0)
    groups["primary"].reads(40)
    replicator.look()
    groups["west"].members.add(GROUP)
    groups["west"].reads(45)
    assert replicator.look().groups[GROUP].decision.home == "west"
    groups["primary"].members.add(GROUP)
    replicator.look()
    groups["primary"].members.clear()
    groups["primary"].reads(30)
    assert replicator.look().groups[GROUP].decision.home == "primary", "it was rewound when it left"


def test_a_group_that_rests_is_read_again_after_a_while(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups, rest=0.05)
    groups["primary"].reads(40)
    replicator.look()
    groups["west"].reads(5)
    time.sleep(0.06)
    assert replicator.look().groups[GROUP].decision.home == "west"
    assert offsets(groups) == [5, 5, 5]


def test_a_group_that_members_have_kept_from_a_commit_is_read_again(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups, rest=3600.0)
    groups["primary"].reads(40)
    replicator.look()
    groups["primary"].reads(50)
    groups["west"].joins = True
    replicator.look()
    groups["west"].joins = False
    groups["west"].reads(60)
    assert replicator.look().groups[GROUP].decision.home == "west"
    assert offsets(groups) == [60, 60, 60]


def test_a_move_commits_what_was_shown_and_only_there(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    moves = planned(replicator, GROUP, source="primary", target="west")
    move(replicator, GROUP, moves, source="primary", target="west")
    assert offsets(groups) == [40, 40, None]
    move(replicator, GROUP, moves, source="primary", target="west")


def test_a_move_of_a_group_that_has_changed_since_it_was_shown_is_refused(groups: dict[str, GroupsInMemory]) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    moves = planned(replicator, GROUP, source="primary", target="west")
    groups["primary"].members.add(GROUP)
    with pytest.raises(CanNotMoveError, match="members on primary"):
        move(replicator, GROUP, moves, source="primary", target="west")
    groups["primary"].members.clear()
    groups["primary"].reads(50)
    with pytest.raises(CanNotMoveError, match="has changed meanwhile"):
        move(replicator, GROUP, moves, source="primary", target="west")
    assert offsets(groups) == [50, None, None]


def test_an_old_position_is_not_committed_over_that_of_a_cluster_that_is_away(
    groups: dict[str, GroupsInMemory],
) -> None:
    replicator = replicator_over(groups)
    groups["primary"].reads(40)
    replicator.look()
    groups["primary"].is_away = True
    groups["north"].reads(60)
    replicator.look()
    assert offsets(groups) == [40, 60, 60]
    groups["primary"].is_away, groups["north"].is_away = False, True
    replicator.look()
    assert offsets(groups) == [40, 60, 60]
    groups["north"].is_away = False
    replicator.look()
    assert offsets(groups) == [60, 60, 60]


@pytest.mark.parametrize("cluster", ["primary", "west"])
def test_a_move_while_a_cluster_tells_no_offsets_is_refused(groups: dict[str, GroupsInMemory], cluster: str) -> None:
    groups["primary"].reads(40)
    groups[cluster].has_no_logs = True
    with pytest.raises(KafkaError, match=f"cluster {cluster}: no leader"):
        planned(replicator_over(groups), GROUP, source="primary", target="west")
