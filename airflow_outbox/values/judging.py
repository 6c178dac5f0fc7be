"""Judge how an outbox is doing; if it is not all right, why, since when, and what to do about it.

There is one judgement, and it is pure: facts in, a verdict out. Whoever shows how an outbox is doing shows this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_outbox.values.moments import moment
from airflow_outbox.values.positions import heard_last
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import (
    BY_GRAVITY,
    UNDELETED,
    ClusterFacts,
    Facts,
    ParkedRefusals,
    State,
    Thresholds,
    Trouble,
    TroubleKind,
    Verdict,
    in_words,
    named,
)

_FRESH = 15.0
"""Seconds for which a member's word counts: while its trouble lasts, it repeats it every five."""
_HARMLESS = (TroubleKind.QUOTA, TroubleKind.CLUSTER, TroubleKind.EXTENTS)
"""Kinds of trouble that keep nobody from leading and, by themselves, nothing from being published."""
_PASSING = (Cause.UNTRIED, Cause.SPREAD)
"""Causes of parking that usually pass within seconds, and need nobody."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that stands, and since when."""

    error: str
    since: datetime


def standing_fault(facts: Facts, thresholds: Thresholds) -> Fault | None:
    """Return the error that keeps records from being published now; the oldest, if there are several.

    It is the leader's, unless something was published since. While nobody leads it is any member's.
    """
    leads = facts.leads(thresholds)
    found = [
        Fault(f"{trouble.member}: {trouble.error}", trouble.since)
        for trouble in _fresh(facts)
        if trouble.kind not in _HARMLESS
        and (not leads or trouble.member == facts.member)
        and (facts.shard is None or trouble.shard in (None, facts.shard))
    ]
    if leads and facts.last_error is not None and facts.last_error_at is not None and not _is_about_owed(facts):
        found.append(Fault(f"{facts.member}: {facts.last_error}", facts.last_error_at))
    if leads:
        found = [fault for fault in found if not facts.has_published_since(fault.since)]
    return min(found, key=lambda fault: fault.since, default=None)


def present_error(facts: Facts, thresholds: Thresholds) -> Fault | None:
    """Return the error that operators see as the last one: one that keeps records from being published now; else a
    quota of Kafka's that holds the leader back, or why a topic's records are parked. It is gone when that is over.
    """
    if (fault := standing_fault(facts, thresholds)) is not None:
        return fault
    if not facts.leads(thresholds):
        return None
    quotas = [Fault(f"{each.member}: {each.error}", each.since) for each in _quotas(facts)]
    topics = [
        Fault(found.reason, found.since)
        for cause, found in facts.parked.items()
        if cause != UNDELETED and Cause(cause).is_of_the_topic
    ]
    return min((*quotas, *topics), key=lambda fault: fault.since, default=None)


def _quotas(facts: Facts) -> list[Trouble]:
    """The quotas that hold the leader back."""
    return [each for each in _fresh(facts) if each.kind is TroubleKind.QUOTA and each.member == facts.member]


def _is_about_owed(facts: Facts) -> bool:
    """Whether the leader's last error is about a cluster that has ceased to count."""
    owed = tuple(f"cluster {cluster.name}: " for cluster in facts.clusters if cluster.part == "owed")
    return facts.last_error is not None and facts.last_error.startswith(owed)


def cluster_faults(facts: Facts) -> list[Fault]:
    """Return the errors of the leader that are about one of several clusters, the oldest first; each begins with its
    name. They keep records from being published anywhere.
    """
    about = tuple(f"cluster {cluster.name}: " for cluster in facts.clusters if cluster.part != "owed")
    found = [
        Fault(trouble.error, trouble.since)
        for trouble in _fresh(facts)
        if trouble.kind is TroubleKind.CLUSTER and trouble.member == facts.member and trouble.error.startswith(about)
    ]
    if facts.last_error is not None and facts.last_error_at is not None and facts.last_error.startswith(about):
        found.append(Fault(facts.last_error, facts.last_error_at))
    return sorted(
        (fault for fault in found if not facts.has_published_since(fault.since)), key=lambda fault: fault.since
    )


def fault_of(cluster: str, facts: Facts) -> Fault | None:
    """Return the oldest error that makes everything wait for this cluster, without its name; of any shard's leader."""
    about = f"cluster {cluster}: "
    found = [fault for each in facts.each for fault in cluster_faults(each) if fault.error.startswith(about)]
    oldest = min(found, key=lambda fault: fault.since, default=None)
    return None if oldest is None else Fault(oldest.error.removeprefix(about), oldest.since)


def judge(facts: Facts, thresholds: Thresholds) -> Verdict:
    """Return the verdict. The gravest state that holds is the one; of several shards, that of the gravest one."""
    if facts.is_standby:
        cause = "this server is a standby, which knows the outbox only up to a moment ago"
        return Verdict(State.UNKNOWN, cause, remedy="Ask the primary")
    if facts.doubt is not None:
        return _halted(facts, facts.doubt)
    if facts.shards:
        return _of_shards(facts, thresholds)
    if not facts.leads(thresholds):
        return _leaderless(facts, thresholds)
    return replace(_led(facts, thresholds), notes=_others(facts, {facts.member}))


def unknown(error: str) -> Verdict:
    """Return the verdict when Postgres can't be reached, or the role may not look."""
    cause, remedy = divided(error)
    return Verdict(State.UNKNOWN, cause, remedy=remedy)


def divided(error: str) -> tuple[str, str]:
    """Divide an error's text into what happened and its last sentence, which says what to do."""
    cause, _, remedy = error.rpartition(". ")
    return (cause, remedy) if cause else (error, "")


def _others(facts: Facts, leaders: set[str | None]) -> tuple[str, ...]:
    """The troubles of members that don't lead, and those about positions; and the clusters that don't count."""
    owed = [f"cluster {cluster.name}: " for cluster in facts.clusters if cluster.part == "owed"]
    troubles = [
        f"{trouble.member}: {trouble.error}"
        for trouble in _fresh(facts)
        if (trouble.member not in leaders or trouble.kind is TroubleKind.EXTENTS)
        and not trouble.error.startswith(tuple(owed))
    ]
    not_counted = [_owed(cluster, facts) for cluster in facts.clusters if cluster.part == "owed"]
    return (*troubles, *not_counted, *dict.fromkeys(_about_positions(facts, leaders)))


def _about_positions(facts: Facts, leaders: set[str | None]) -> Iterator[str]:
    """The words of the replicators of positions, or the silence of the last one. One that has gone with the leader that
    it was beside needs nobody.
    """
    for report in facts.positions:
        if report.is_fresh(facts.now):
            yield from report.said
    last = heard_last(facts.positions, leaders=leaders, now=facts.now)
    if last is not None and not last.is_fresh(facts.now):
        yield (
            f"positions have not been replicated for {in_words(facts.seconds_since(last.told_at))}: {last.member} is "
            "silent. Look at that process, or start `airflow-outbox positions run`"
        )


def _owed(cluster: ClusterFacts, facts: Facts) -> str:
    why = f": {cluster.reason}" if cluster.reason else ""
    since = f" since {moment(cluster.since)}" if cluster.since else ""
    age = None if cluster.owed_since is None else in_words(max(0.0, facts.seconds_since(cluster.owed_since)))
    oldest = "" if age is None else f". The oldest batch that it misses was published {age} ago"
    return (
        f"cluster {cluster.name} does not count{since}{why}{oldest}. `airflow-outbox clusters attach {cluster.name}` "
        "publishes what it has missed"
    )


def _of_shards(facts: Facts, thresholds: Thresholds) -> Verdict:
    """The gravest shard's verdict, which names it, and notes about other shards that are not healthy."""
    verdicts = {each.shard or 0: judge(each, thresholds) for each in facts.shards}
    leaders = {each.member for each in facts.shards if each.leads(thresholds)}
    if facts.shards[0].backlog is None and facts.backlog is not None and facts.leads(thresholds):
        verdicts[-1] = _led(replace(facts, shards=(), parked={}), thresholds)  # counted only as a whole
    alike: dict[State, list[int]] = {}
    for number, verdict in verdicts.items():
        alike.setdefault(verdict.state, []).append(number)
    state, *others = sorted(alike, key=BY_GRAVITY.index)
    if state is State.HEALTHY:
        return replace(_healthy(facts), notes=_others(facts, leaders))
    first = min(alike[state], key=lambda number: verdicts[number].since or facts.now)
    worst = verdicts[first]
    same = [number for number in alike[state] if verdicts[number].cause == worst.cause]
    is_of_all = not others and (state is State.NO_LEADER or (len(same) == len(verdicts) and state is not State.LAGGING))
    notes = [*_others(facts, leaders)] if leaders else [*worst.notes]
    if not is_of_all and (rest := [number for number in alike[state] if number not in same]):
        notes.append(f"{state.words}, too: {named(rest)}")
    for other in others:
        if other is not State.HEALTHY:
            notes.append(f"{other.words}: {named(alike[other])}: {verdicts[alike[other][0]].cause}")
    cause = worst.cause if is_of_all or first < 0 else f"{named(same)}: {worst.cause}"
    return Verdict(state, cause, worst.since, worst.remedy, tuple(notes))


def _fresh(facts: Facts) -> Iterable[Trouble]:
    return [trouble for trouble in facts.troubles if abs(facts.seconds_since(trouble.told_at)) <= _FRESH]


def _halted(facts: Facts, doubt: str) -> Verdict:
    is_the_error = facts.last_error is not None and doubt in facts.last_error
    return Verdict(
        State.HALTED,
        f"nothing is published, and nobody can tell what is: {doubt}",
        facts.last_error_at if is_the_error else None,
        "Find out what was restored, failed over, copied, deleted or recreated; then run `airflow-outbox adopt`, or, "
        "if this is a copy beside the original, `airflow-outbox adopt --as-new-outbox`",
    )


def _leaderless(facts: Facts, thresholds: Thresholds) -> Verdict:
    fault = standing_fault(facts, thresholds)
    if fault is not None:
        cause, remedy = divided(fault.error)
        return Verdict(State.STALLED, f"nobody can lead. {cause}", fault.since, remedy)
    cause, remedy = "nobody leads", "Start a harvester"
    if facts.heard_at is None:
        cause = "nobody has led yet"
    elif facts.member is not None and facts.heard_at > facts.now:
        cause += f": {facts.member} was last heard from before Postgres' clock was set back"
    elif facts.member is not None:
        cause += f": {facts.member} was last heard from {in_words(facts.seconds_since(facts.heard_at))} ago"
        remedy = "Look at that process, or start another harvester"
    if facts.paused:
        cause += ", and the outbox is paused"
    last = max(facts.troubles, key=lambda trouble: trouble.told_at, default=None)
    is_news = last is not None and (facts.heard_at is None or last.told_at > facts.heard_at)
    notes = (f"the last that {last.member} said: {last.error}",) if last is not None and is_news else ()
    return Verdict(State.NO_LEADER, cause, facts.heard_at, remedy, notes)


def _led(facts: Facts, thresholds: Thresholds) -> Verdict:
    if facts.paused:
        cause = "an operator has paused it: what is stashed waits"
        return Verdict(State.PAUSED, cause, facts.paused_at, "`airflow-outbox resume` ends the pause")
    if held := cluster_faults(facts):
        cause, remedy = divided(held[0].error)
        return Verdict(State.HELD, f"all waits for {cause}", held[0].since, remedy)
    if (fault := standing_fault(facts, thresholds)) is not None:
        cause, remedy = divided(fault.error)
        return Verdict(State.STALLED, cause, fault.since, remedy)
    age = facts.backlog.oldest_age if facts.backlog is not None else None
    waits = f"{facts.backlog} records wait, the oldest for {in_words(age)}" if age is not None else ""
    since = facts.now - timedelta(seconds=age) if age is not None else None
    if waits and (quotas := _quotas(facts)):
        cause, remedy = divided(quotas[0].error)
        return Verdict(State.LAGGING, f"{cause}; {waits}", quotas[0].since, remedy)
    if age is not None and (idle_since := _idle_since(facts, age, thresholds)) is not None:
        idle = in_words(facts.seconds_since(idle_since))
        handover = "handover" if facts.shard is None else f"handover --shard {facts.shard}"
        remedy = f"Look at the log of {facts.member}; `airflow-outbox {handover}` lets another member try"
        return Verdict(State.STALLED, f"{waits}, and none was published for {idle}", idle_since, remedy)
    if age is not None and age > thresholds.lagging_after:
        return Verdict(State.LAGGING, waits, since, "Wait if the rate is as it should be; otherwise look at Kafka")
    return _parked(facts, thresholds) or _healthy(facts)


def _idle_since(facts: Facts, age: float, thresholds: Thresholds) -> datetime | None:
    """Since when nothing has been published, if that is too long for the records that wait."""
    times = [time for time in (facts.took_over_at, facts.published_at) if time is not None]
    since = max([facts.now - timedelta(seconds=age), *times])
    return since if facts.seconds_since(since) > thresholds.stalled_after else None


def _parked(facts: Facts, thresholds: Thresholds) -> Verdict | None:
    found = {
        cause: refusals
        for cause, refusals in facts.parked.items()
        if cause != UNDELETED
        and (cause not in _PASSING or facts.seconds_since(refusals.since) > thresholds.lagging_after)
    }
    if not found:
        return _undeleted(facts.parked.get(UNDELETED))
    counts = ", ".join(f"{refusals.records} {cause}" for cause, refusals in found.items())
    first = min(found.values(), key=lambda refusals: refusals.since)
    remedy = "`airflow-outbox parked list` shows them: remove the cause and `parked retry`, or `parked discard`"
    return Verdict(State.LAGGING, f"records are parked ({counts}): {first.reason}", first.since, remedy)


def _undeleted(found: ParkedRefusals | None) -> Verdict | None:
    if found is None:
        return None
    remedy = (
        "`airflow-outbox parked list` shows them. Remove what refers to them, or the trigger that keeps them; they are "
        "deleted soon after that"
    )
    cause = f"published records can't be deleted ({found.records}): {found.reason}"
    return Verdict(State.LAGGING, cause, found.since, remedy)


def _healthy(facts: Facts) -> Verdict:
    leads = f"{facts.member} leads"
    if facts.shards:
        leaders = {each.member for each in facts.shards}
        leads = f"{facts.member} leads" if len(leaders) == 1 else f"{len(leaders)} members lead"
        leads += f" {len(facts.shards)} shards"
    if facts.backlog is None:
        return Verdict(State.HEALTHY, f"{leads}; the backlog could not be counted in time")
    if facts.backlog.records == 0:
        return Verdict(State.HEALTHY, f"{leads}, and nothing waits")
    return Verdict(State.HEALTHY, f"{leads}, and {facts.backlog} records are on their way")
