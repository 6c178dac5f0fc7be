"""Answers to operators about positions: how groups are, where an offset is, whether a group may move."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.positions.homes import Side, mark_from
from airflow_outbox.positions.replicator import GroupNews, Replicator, SyncResult
from airflow_outbox.positions.translation import Translation, Why
from airflow_outbox.values.extents import BatchExtent, TopicAndPartition

_LOOK_INTERVAL = 0.5
_WHY = {
    Why.WITHIN: "within a batch that both have",
    Why.AFTER: "after a batch that both have",
    Why.LACKING: "{target} lacks what follows, so it is after the last batch that both have",
    Why.UNKNOWN: "no batch is known that both have and that comes before it, so all that {target} keeps is read again",
    Why.NOTHING: "no batch of this partition is known, so all that {target} keeps is read again",
    Why.OUT_OF_RANGE: "the partition on {source} ends before it, so all that {target} keeps is read again",
}


class CanNotMoveError(OutboxError):
    """The group can't move now. See `airflow-outbox positions status`."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's part in a move: the offsets on both clusters, and how many records are read again at most.

    `again` is None where nobody knows. `replaces` is an offset that somebody else has committed there, and that would
    be lost.
    """

    place: TopicAndPartition
    source: int
    target: int
    again: int | None
    replaces: int | None = None


def behind(news: GroupNews, cluster: str) -> int:
    """Return how many offsets of its home a group has read since its position was last committed on a cluster."""
    home = news.decision.home
    if home is None or cluster == home:
        return 0
    return sum(
        max(0, committed.offset - _synced(news.sides, home, cluster, place))
        for place, committed in news.sides[home].committed.items()
    )


def described(group: str, news: GroupNews) -> str:
    """Return how a group is, in a line."""
    decision = news.decision
    if news.failure is not None:
        return f"{group}: {news.failure}"
    if decision.homes:
        return (
            f"{group}: left alone, because somebody else has committed on {' and '.join(decision.homes)}. "
            f"`airflow-outbox positions move {group} --to NAME` decides where it goes on"
        )
    if decision.home is None:
        return f"{group}: it has committed nothing in the outbox's topics"
    parts = [
        f"{group}: reads on {decision.home}" if news.sides[decision.home].has_members else f"{group}: {decision.home}"
    ]
    for cluster in news.sides:
        if cluster != decision.home:
            parts.append(_on_another(news, cluster))
    if news.synced_at is not None:
        parts.append(f"last committed {datetime.fromtimestamp(news.synced_at, UTC).isoformat(timespec='seconds')}")
    return "; ".join(parts)


def as_values(group: str, news: GroupNews) -> dict[str, Any]:
    """Return how a group is, for JSON."""
    return {
        "group": group,
        "home": news.decision.home,
        "two_homes": list(news.decision.homes),
        "waiting": list(news.decision.waiting),
        "failure": news.failure,
        "missing": [{"cluster": cluster, "topic": topic, "partition": n} for cluster, (topic, n) in news.not_there],
        "synced_at": None if news.synced_at is None else datetime.fromtimestamp(news.synced_at, UTC).isoformat(),
        "clusters": {
            cluster: {
                "has_members": side.has_members,
                "behind": behind(news, cluster),
                "due": len(news.decision.commits.get(cluster, {})),
                "offsets": [
                    {"topic": topic, "partition": n, "offset": each.offset, "replicated": each.mark is not None}
                    for (topic, n), each in sorted(side.committed.items())
                ],
            }
            for cluster, side in news.sides.items()
        },
    }


def why_it_may_not_move(group: str, look: SyncResult, target: str) -> str | None:
    """Return why a group can't yet move to a cluster and go on there where it was; None if it can, or is there."""
    for cluster, reason in look.away.items():
        return f"cluster {cluster}: {reason}"
    news = look.groups.get(group)
    if news is None:
        return f"no cluster knows the group {group}"
    decision = news.decision
    if news.failure is not None or decision.homes or decision.home is None:
        return described(group, news)
    if decision.home == target:
        return None
    for cluster, side in news.sides.items():
        if side.has_members:
            return f"group {group} has members on {cluster}"
    lacking = [place for cluster, place in news.not_there if cluster == target]
    if lacking:
        return f"{target} lacks partition {lacking[0][1]} of topic {lacking[0][0]}"
    if decision.commits.get(target):
        return f"the position of group {group} is not yet on {target}"
    return None


def lookup(replicator: Replicator, place: TopicAndPartition, offset: int, *, source: str, target: str) -> Translation:
    """Return where an offset on one cluster is on another. Raises OutboxError if a cluster lacks the partition."""
    found = replicator.translator([place]).translation(source, target, place, offset)
    if found is None:
        raise OutboxError(
            f"topic {place[0]} has no partition {place[1]} on {source}, or none on {target}. Check --topic and "
            "--partition"
        )
    return found


def lookup_in_words(
    found: Translation, place: TopicAndPartition, offset: int, *, source: str, target: str
) -> list[str]:
    """Return a translation in words, in lines."""
    lines = [
        f"{place[0]}/{place[1]}: {offset} on {source} is {found.offset} on {target}",
        _reason(found, source, target),
    ]
    for cluster, extent in ((source, found.source), (target, found.target)):
        if extent is not None:
            lines.append(f"{cluster}: {_extent(extent)}")
    return [*lines, _again(found.again)]


def wait_until_empty(replicator: Replicator, group: str, target: str, *, patience: float) -> str:
    """Wait until a group has no members, and return from where it moves.

    Raises CanNotMoveError if that takes longer, and for a group that is there already.
    """
    deadline = time.monotonic() + patience
    while True:
        look = replicator.look(commits=False)
        for cluster, reason in look.away.items():
            raise CanNotMoveError(f"cluster {cluster}: {reason}")
        news = look.groups.get(group)
        if news is None:
            raise CanNotMoveError(f"no cluster knows the group {group}. Check its name")
        if news.failure is None and not any(side.has_members for side in news.sides.values()):
            return _source(group, news, target)
        if time.monotonic() > deadline:
            reading = [cluster for cluster, side in news.sides.items() if side.has_members]
            problem = news.failure or f"has members on {' and '.join(reading)}"
            raise CanNotMoveError(f"group {group}: {problem}. Stop its consumers, and try again")
        time.sleep(_LOOK_INTERVAL)


def planned(replicator: Replicator, group: str, *, source: str, target: str) -> list[Move]:
    """Return what a move does, by partition.

    Raises KafkaError, and CanNotMoveError where a cluster lacks a partition.
    """
    return _moves(replicator, replicator.follow(group, source), source, target)


def move(replicator: Replicator, group: str, moves: Sequence[Move], *, source: str, target: str) -> None:
    """Commit a group's positions on the cluster to which it moves, as `moves` says.

    Raises KafkaError, and CanNotMoveError where members have come, or something has changed since.
    """
    deadline = time.monotonic() + 10.0
    while True:
        wanted = replicator.follow(group, source)
        for cluster in (source, target):
            if wanted.sides[cluster].has_members:
                raise CanNotMoveError(f"group {group} has members on {cluster}, which commit by themselves. Stop them")
        if _offsets(_moves(replicator, wanted, source, target)) != _offsets(moves):
            raise CanNotMoveError(f"the position of group {group} has changed meanwhile, so it stays. Try again")
        if target not in wanted.decision.commits:
            return
        if time.monotonic() > deadline:
            raise CanNotMoveError(f"the position of group {group} can't be committed on {target}. Try again")
        replicator.commit(group, wanted, target)


def move_in_words(moves: Sequence[Move], *, source: str, target: str) -> Iterator[str]:
    """Return what a move does, one line a partition, and the sum."""
    for each in moves:
        topic, partition = each.place
        line = f"{topic}/{partition}: {each.source} on {source} is {each.target} on {target}"
        if each.replaces is not None:
            line += f", instead of {each.replaces}, which somebody else has committed"
        yield line
    if moves:
        known = [each.again for each in moves if each.again is not None]
        yield _again(sum(known) if len(known) == len(moves) else None)


def _moves(replicator: Replicator, wanted: GroupNews, source: str, target: str) -> list[Move]:
    for cluster, (topic, partition) in wanted.not_there:
        if cluster == target:
            raise CanNotMoveError(f"{target} lacks partition {partition} of topic {topic}. Give it as many partitions")
    translator = replicator.translator(wanted.sides[source].committed)
    due = wanted.decision.commits.get(target, {})
    moves = []
    for place, committed in sorted(wanted.sides[source].committed.items()):
        there = wanted.sides[target].committed.get(place)
        found = translator.translation(source, target, place, committed.offset)
        again = None if found is None else found.again
        if place in due:
            replaces = there.offset if there is not None and there.mark is None else None
            moves.append(Move(place, committed.offset, due[place].offset, again, replaces))
        elif there is not None:
            moves.append(Move(place, committed.offset, there.offset, again))
    return moves


def _offsets(moves: Sequence[Move]) -> list[tuple[TopicAndPartition, int, int]]:
    return [(each.place, each.source, each.target) for each in moves]


def _source(group: str, news: GroupNews, target: str) -> str:
    if target not in news.sides:
        raise ConfigurationError(f"the outbox has no cluster {target}. It has {', '.join(news.sides)}")
    decision = news.decision
    homes = [decision.home] if decision.home is not None else [home for home in decision.homes if home != target]
    if homes == [target]:
        raise CanNotMoveError(f"group {group} goes on at {target} already")
    if len(homes) != 1:
        raise CanNotMoveError(described(group, news))
    return homes[0]


def _synced(sides: Mapping[str, Side], home: str, cluster: str, place: TopicAndPartition) -> int:
    there, here = mark_from(sides, home, cluster, place), mark_from(sides, cluster, home, place)
    if there is not None and (here is None or here.at < there.at):
        return there.source_offset
    return here.offset if here is not None else 0


def _on_another(news: GroupNews, cluster: str) -> str:
    if any(lacking == cluster for lacking, _ in news.not_there):
        return f"{cluster} lacks partitions of its topics"
    offsets = behind(news, cluster)
    if cluster in news.decision.waiting:
        return f"{cluster} is {offsets} offsets behind, and stays so, because the group has members there, too"
    return f"{cluster} is in step" if not offsets else f"{cluster} is {offsets} offsets behind"


def _reason(found: Translation, source: str, target: str) -> str:
    return _WHY[found.why].format(source=source, target=target)


def _extent(extent: BatchExtent) -> str:
    batch = f"batch {extent.batch.number} of view {extent.batch.view}"
    return f"{batch}, {extent.count} records at offsets {extent.first} to {extent.last}"


def _again(records: int | None) -> str:
    if records is None:
        return "it is not known how many records are read again"
    return "no record is read again" if not records else f"at most {records} records are read again"
