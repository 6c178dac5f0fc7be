"""A replicator tells of its looks: in its log and events, and in Postgres, by the process that it runs beside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_outbox.harvest.kafka.errors import NowAndThen
from airflow_outbox.harvest.ports import Events
from airflow_outbox.positions.operating import behind, described
from airflow_outbox.positions.replicator import GroupNews, SyncResult
from airflow_outbox.values.positions import GroupState

_INTERVAL = 10.0
_MOST_NAMED = 10
_MOST_SHOWN = 200
_MOST_SAID = 3
_BY_URGENCY = tuple(GroupState)


class Reporter:
    """Tells of looks now and then, and of errors and of groups with two homes at once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._errors = NowAndThen()
        self._commits = self._failures = 0
        self._due_at = 0.0
        self._two_homes: list[str] = []
        self._numbers: Mapping[str, Any] = {}

    def complain(self, error: str) -> None:
        """Nobody could look, for this reason."""
        self._failures += 1
        self._tell_error(error)
        self._events("positions_seen", report=self._report([f"positions are not replicated: {error}"]), shown=None)

    def take(self, look: SyncResult) -> None:
        """Somebody has looked."""
        self._commits += look.commits
        self._failures += look.failures
        for text in problems_of(look):
            self._tell_error(text)
        two_homes = sorted(group for group, news in look.groups.items() if news.decision.homes)
        now = time.monotonic()
        if now < self._due_at and two_homes == self._two_homes:
            return
        self._due_at, self._two_homes = now + _INTERVAL, two_homes
        homes = Counter(news.decision.home for news in look.groups.values() if news.decision.home is not None)
        self._events(
            "positions",
            groups=len(look.groups),
            homes=dict(homes),
            two_homes=two_homes[:_MOST_NAMED],
            waiting=sum(bool(news.decision.waiting) for news in look.groups.values()),
            away=dict(look.away),
            seconds=round(look.seconds, 3),
            commits=self._commits,
            failures=self._failures,
        )
        self._numbers = summed_up(look)
        self._events("positions_seen", report=self._report(said_of(look)), shown=shown_of(look))

    def _report(self, said: list[str]) -> dict[str, Any]:
        return {**self._numbers, "commits": self._commits, "failures": self._failures, "said": said}

    def _tell_error(self, text: str) -> None:
        if self._errors.passes(text):
            self._events("error", error=f"positions: {text}", retry_in=None)


def problems_of(look: SyncResult) -> list[str]:
    """Return in words what a look could not do."""
    away = [f"cluster {cluster}: {reason}" for cluster, reason in look.away.items()]
    return away + [f"group {group}: {news.failure}" for group, news in look.groups.items() if news.failure is not None]


def state_of(news: GroupNews) -> GroupState:
    """Return how a group's positions are."""
    decision = news.decision
    if news.failure is not None:
        return GroupState.FAILING
    if decision.homes:
        return GroupState.LEFT_ALONE
    if decision.home is None:
        return GroupState.UNKNOWN
    if news.not_there:
        return GroupState.LACKING
    return GroupState.WAITING if decision.waiting else GroupState.FOLLOWING


def said_of(look: SyncResult) -> list[str]:
    """Return in sentences what needs somebody: of each kind the first few, and how many there are."""
    said = [f"positions: cluster {cluster}: {reason}" for cluster, reason in look.away.items()]
    for state in (GroupState.FAILING, GroupState.LEFT_ALONE, GroupState.LACKING, GroupState.WAITING):
        found = sorted(group for group, news in look.groups.items() if state_of(news) is state)
        said += [f"positions of {described(group, look.groups[group])}" for group in found[:_MOST_SAID]]
        if (left := len(found) - _MOST_SAID) > 0:
            said.append(f"positions of {left} more groups are {state.replace('_', ' ')}")
    return said


def summed_up(look: SyncResult) -> dict[str, Any]:
    """Return a look's numbers."""
    states = Counter(state_of(news).value for news in look.groups.values())
    most = Counter[str]()
    for news in look.groups.values():
        for cluster, offsets in _behind(news).items():
            most[cluster] = max(most[cluster], offsets)
    return {"groups": dict(states), "behind": dict(most), "seconds": round(look.seconds, 3)}


def shown_of(look: SyncResult) -> list[dict[str, Any]]:
    """Return the groups for people, those first that need somebody; of many, some."""
    ranked = sorted(look.groups.items(), key=lambda each: (_BY_URGENCY.index(state_of(each[1])), each[0]))
    return [_group(group, news) for group, news in ranked[:_MOST_SHOWN]]


def _group(group: str, news: GroupNews) -> dict[str, Any]:
    at = None if news.synced_at is None else datetime.fromtimestamp(news.synced_at, UTC).isoformat()
    return {
        "group": group,
        "state": state_of(news).value,
        "home": news.decision.home,
        "behind": _behind(news),
        "synced_at": at,
        "why": described(group, news).removeprefix(f"{group}: "),
    }


def _behind(news: GroupNews) -> Mapping[str, int]:
    home = news.decision.home
    return {} if home is None else {cluster: behind(news, cluster) for cluster in news.sides if cluster != home}
