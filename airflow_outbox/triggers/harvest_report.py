"""The news of a harvest, and how often it is shown: in the task's log, in the XCom `progress`, in asset events.

Pure: the clock is passed in.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_outbox.values.judging import unknown
from airflow_outbox.values.metrics import BACKLOG, BACKLOG_IS_EXACT, LATENCY, OLDEST_AGE, PARKED
from airflow_outbox.values.verdict import State, in_words

PROGRESS_INTERVAL = 10.0
IDLE_PROGRESS_INTERVAL = 600.0
ASSET_EVENT_INTERVAL = 1.0
REPEAT_INTERVAL = 600.0
_MOST_KNOWN = 100
_BURST = 20
_REFILL_INTERVAL = 10.0
_KEPT_OUTPUT = 20
_STATES = frozenset(State)
_OF_MANY = frozenset({"found", "woken", "rests", "elected", "view", "took_over"})
"""Events about one of many outboxes that nobody needs to read."""

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the task's log, with a level of the module `logging`."""

    level: int
    text: str


@dataclass(slots=True)
class LogLimit:
    """Lets a burst of lines through, then one every ten seconds: a deferred task has one log file for its life."""

    left: float = _BURST
    at: float | None = None
    held_back: int = 0

    def passes(self, now: float) -> bool:
        if self.at is not None:
            self.left = min(_BURST, self.left + (now - self.at) / _REFILL_INTERVAL)
        self.at = now
        if self.left < 1:
            self.held_back += 1
            return False
        self.left -= 1
        return True

    def limited(self, line: LogLine, now: float) -> Iterator[LogLine]:
        """Yield the line if it passes, after one that says how many have not."""
        if not self.passes(now):
            return
        if self.held_back:
            yield LogLine(logging.WARNING, f"({self.held_back} more lines like these were left out)")
            self.held_back = 0
        yield line


@dataclass(slots=True)
class OnceEach:
    """Lets a text through once, and again after ten minutes; or sooner, after it was forgotten."""

    _known: dict[str, float] = field(default_factory=dict)  # when each was let through, the oldest first

    def passes(self, text: str, now: float) -> bool:
        if not _passed(self._known.get(text), REPEAT_INTERVAL, now):
            return False
        self._known.pop(text, None)
        if len(self._known) == _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[text] = now
        return True

    def forget(self) -> None:
        """All is well again: the same text would be news."""
        self._known.clear()


@dataclass(slots=True)
class HarvestReport:
    """Follows one harvest over all its processes: `take` every event, in order; then ask what is due."""

    published: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    """The published records by topic."""
    started: bool = False
    """Whether the present process has begun to harvest."""
    end_reason: str | None = None
    """Why the present process has shut down gracefully: `drained`, `time` or `stopped`."""
    last_error: str | None = None
    progress: dict[str, Any] | None = None
    """The newest progress, as the XCom shows it."""
    _published_before: int = 0
    _seen: dict[str, Any] = field(default_factory=dict)  # the newest verdict, and what it is made of
    _verdict: tuple[object, object] | None = None  # the last that was logged
    _output: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_OUTPUT))
    _limit: LogLimit = field(default_factory=LogLimit)
    _verdict_limit: LogLimit = field(default_factory=LogLimit)  # a storm of others must not hold a verdict back
    _errors: OnceEach = field(default_factory=OnceEach)
    _topics: Counter[str] = field(default_factory=Counter)
    _parking: dict[str, Any] = field(default_factory=dict)  # news of parking for asset events
    _logged: tuple[float | None, int] = (None, 0)  # when the last progress line was, and how much had been published
    _shown: tuple[float | None, dict[str, Any] | None] = (None, None)
    _asset_event_at: float | None = None
    _positions: object = None  # what was told of them last

    @property
    def sees(self) -> bool:
        """Whether a process tells how the outbox is doing."""
        return "standing" in (self.progress or {})

    def begin_process(self) -> None:
        """Begin a new process: its counts begin at zero."""
        self._published_before = self.published
        self.started = False
        self.end_reason = self.last_error = None
        self._output.clear()

    def take(self, event: Event, now: float) -> Iterator[LogLine]:
        """Take an event in; yield the log lines that are due."""
        kind = event["event"]
        if kind == "progress":
            self._take_progress(event)
            yield from self._progress_line(now)
            return
        if kind == "measured":
            self._seen = _seen(event)
            return
        if kind == "unreached":  # its supervisor acts on it, and errors tell of it
            return
        if kind in _OF_MANY and "outbox" in event:  # hundreds of outboxes come and go
            return
        if kind == "started":
            self.started = True
        elif kind == "error":
            self.last_error = str(event.get("error"))
            if not self._errors.passes(f"{event.get('outbox')} {event.get('shard')} {self.last_error}", now):
                return
        elif kind == "verdict":
            news = event.get("state"), event.get("remedy")
            if news == self._verdict:
                return
            self._verdict = news
            if event.get("state") == State.HEALTHY:
                self._errors.forget()
        elif kind == "ended":
            self.end_reason = str(event.get("reason"))
            self._count(event)
        elif kind == "positions":
            told = event.get("two_homes"), sorted(event.get("away") or ())
            if told == self._positions:
                return
            self._positions = told
        elif kind == "output":
            self._output.append(str(event.get("line")))
        elif kind in ("parked", "retried", "discarded"):
            self._parking[kind] = _added(self._parking.get(kind, {}), event)
        limit = self._verdict_limit if kind == "verdict" else self._limit
        yield from limit.limited(_described(event), now)

    def news_due(self, now: float, *, final: bool = False) -> dict[str, Any]:
        """The news since this last returned some; at most once a second, unless it is `final`. `topics` has the records
        published by topic. `parked`, `retried` and `discarded` are there if there is anything to say. More records
        waiting behind parked ones are news only beside other news.
        """
        if not (self._topics or self._parking.keys() - {"parked"} or self._parking.get("parked", {}).get("refused")):
            return {}
        if not (final or _passed(self._asset_event_at, ASSET_EVENT_INTERVAL, now)):
            return {}
        news = {"topics": dict(self._topics), **self._parking}
        self._topics, self._parking = Counter(), {}
        self._asset_event_at = now
        return news

    def progress_due(self, now: float) -> dict[str, Any] | None:
        """The progress to show as XCom: when the verdict is another, at once; else when it has changed and ten seconds
        have passed.
        """
        shown_at, shown = self._shown
        if self.progress == shown:
            return None
        if _state(self.progress) == _state(shown) and not _passed(shown_at, PROGRESS_INTERVAL, now):
            return None
        self._shown = (now, self.progress)
        return self.progress

    def why_it_ended(self, status: int | None) -> str:
        """Why a process ended early, in words."""
        if self.last_error is not None and status == 1:
            return self.last_error
        how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        words = [f"the harvesting process {how}"]
        if self.last_error is not None:
            words.append(f"its last error: {self.last_error}")
        if self._output:
            words.append("its last output:\n" + "\n".join(self._output))
        return "; ".join(words)

    def lose_sight(self, problem: str) -> dict[str, Any]:
        """The process has ended or is silent: nobody here sees how the outbox is doing. Return that as an event."""
        verdict = unknown(problem)
        told = {"state": verdict.state.value, "cause": verdict.cause, "since": None, "remedy": verdict.remedy}
        self._seen, self._verdict = {}, None
        self.progress = {"published": self.published, "verdict": told}
        return {"event": "verdict", **told, "notes": []}

    def _take_progress(self, event: Event) -> None:
        self._count(event)
        topics = {str(topic): int(count) for topic, count in (event.get("topics") or {}).items()}
        self.topics.update(topics)
        self._topics.update(topics)
        known = {name: event.get(name) for name in ("standing", "view", "in_flight", "rate")}
        known |= {name: event[name] for name in ("clusters", "outboxes") if name in event}
        self.progress = {**known, "published": self.published, **self._seen}

    def _count(self, event: Event) -> None:
        self.published = self._published_before + int(event.get("published") or 0)

    def _progress_line(self, now: float) -> Iterator[LogLine]:
        logged_at, logged = self._logged
        if not _passed(logged_at, IDLE_PROGRESS_INTERVAL if self.published == logged else PROGRESS_INTERVAL, now):
            return
        self._logged = (now, self.published)
        progress = self.progress or {}
        rate = progress.get("rate") or 0
        now_doing = f"{rate:.0f}/s now, {progress.get('in_flight')} in flight; {progress.get('standing')}"
        yield LogLine(logging.INFO, f"{self.published} records published, {now_doing}{_waiting(progress)}")


def combined(reports: Sequence[HarvestReport]) -> dict[str, Any] | None:
    """Return the progress of several processes of one harvest as one: counts are added."""
    known = [report.progress for report in reports if report.progress is not None]
    if len(known) < 2:
        return known[0] if known else None
    seeing = [report.progress for report in reports if report.progress and report.sees] or known
    leading = next((progress for progress in seeing if progress.get("standing") == "leading"), seeing[0])
    sums = {name: sum(progress[name] or 0 for progress in seeing if name in progress) for name in ("in_flight", "rate")}
    return {**leading, **sums, "published": sum(progress["published"] for progress in known)}


def _passed(since: float | None, interval: float, now: float) -> bool:
    return since is None or now - since >= interval


def _added(sum_: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """Several parking events as one: counts are added, and the last event with reasons gives the reasons."""
    added = dict(sum_)
    for name, value in event.items():
        if name in ("refused", "waiting"):
            added[name] = added.get(name, 0) + value
        elif name == "topics":
            added[name] = dict(Counter(added.get(name, {})) + Counter(value))
        elif name == "reasons" and (value or name not in added):
            added[name] = value
    return added


def _counts(topics: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {topic}" for topic, count in topics.items())


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _why(reasons: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{why['reason']} ({_records(why['records'])}, {why['cause']})" for why in reasons)


def _seen(event: Event) -> dict[str, Any]:
    """Return the parts of an event that the XCom shows; ages that change all the time are left out."""
    values = event.get("metrics") or {}
    parked = {cause: count for cause, count in (values.get(PARKED.key) or {}).items() if count}
    waits = {metric.key: values.get(metric.key) for metric in (BACKLOG, BACKLOG_IS_EXACT, OLDEST_AGE, LATENCY)}
    return {"verdict": event.get("verdict"), **waits, "parked": parked}


def _state(progress: Mapping[str, Any] | None) -> str | None:
    """The state of the verdict that the XCom shows."""
    verdict: Mapping[str, Any] = (progress or {}).get("verdict") or {}
    return verdict.get("state")


def _waiting(progress: Mapping[str, Any]) -> str:
    """How much waits, in words; nothing if nothing does."""
    backlog, age = progress.get(BACKLOG.key), progress.get(OLDEST_AGE.key)
    if not backlog:
        return ""
    count = f"{backlog}" if progress.get(BACKLOG_IS_EXACT.key) else f"more than {backlog}"
    return f"; {count} wait" + (f", the oldest for {in_words(age)}" if age is not None else "")


def _verdict(event: Event) -> LogLine:
    """A verdict in a line: state, since when, cause, what to do."""
    state, since = State(event["state"]), event.get("since")
    is_well = state in (State.HEALTHY, State.PAUSED)
    text = f"{state.words}{f' since {since}' if since and not is_well else ''}: {event['cause']}"
    if event.get("remedy"):
        text += f". To do: {event['remedy']}"
    return LogLine(logging.INFO if is_well else logging.WARNING, text)


def _described(event: Event) -> LogLine:
    line = _told(event)
    if event["event"] in ("error", "parked", "retried", "discarded") and "shard" in event:  # of several
        line = LogLine(line.level, f"shard {event['shard']}: {line.text}")
    if "outbox" in event and event["event"] != "started":  # of many
        line = LogLine(line.level, f"{event['outbox']}: {line.text}")
    return line


def _told(event: Event) -> LogLine:
    match event:
        case {"event": "started", "outbox": outbox, "outbox_id": outbox_id, "pid": pid}:
            return LogLine(logging.INFO, f"process {pid} harvests {outbox} ({outbox_id})")
        case {"event": "started", "names": list() as outboxes, "pid": pid}:
            return LogLine(logging.INFO, f"process {pid} harvests {', '.join(map(str, outboxes))}")
        case {"event": "gone"}:
            return LogLine(logging.WARNING, "the outbox is gone")
        case {"event": "elected", "role": role}:
            return LogLine(logging.INFO, f"elected to lead part {role} of the outboxes")
        case {"event": "stood_by", "role": role, "reason": reason}:
            return LogLine(logging.INFO, f"stands by for part {role} of the outboxes: {reason}")
        case {"event": "elected", "shard": shard}:
            return LogLine(logging.INFO, f"elected to lead shard {shard}")
        case {"event": "view", "shard": shard, "view": view}:
            return LogLine(logging.INFO, f"leads shard {shard} under view {view}")
        case {"event": "took_over", "shard": shard, "seconds": seconds}:
            return LogLine(logging.INFO, f"harvests shard {shard}, after a take-over of {seconds:.1f} s")
        case {"event": "verdict", "state": state, "cause": _} if state in _STATES:
            return _verdict(event)
        case {"event": "stood_by", "shard": shard, "reason": reason}:
            return LogLine(logging.INFO, f"stands by for shard {shard}: {reason}")
        case {"event": "handed_over", "shard": shard}:
            return LogLine(logging.INFO, f"hands shard {shard} over, as an operator has asked")
        case {"event": "stands_in", "shard": shard}:
            return LogLine(logging.INFO, f"stands in as leader of shard {shard}")
        case {"event": "detached", "cluster": cluster, "reason": reason}:
            return LogLine(logging.WARNING, f"goes on without cluster {cluster}: {reason}")
        case {"event": "fenced", "shard": shard, "view": view}:
            return LogLine(logging.WARNING, f"fenced: another process has taken over shard {shard} from view {view}")
        case {"event": "error", "error": error, "retry_in": int() | float() as delay}:
            return LogLine(logging.WARNING, f"{error} (tries again in {delay:g} s)")
        case {"event": "error", "error": error}:
            return LogLine(logging.WARNING, str(error))
        case {"event": "parked", "topics": topics, "refused": refused, "waiting": waiting, "reasons": reasons}:
            behind = f"{waiting} records wait behind parked ones"
            if refused:
                return LogLine(logging.WARNING, f"parked {_counts(topics)}: {_why(reasons)}; {behind}")
            return LogLine(logging.INFO, f"parked {_counts(topics)}: {behind}")
        case {"event": "retried", "refused": refused, "reasons": reasons} if refused:
            return LogLine(logging.WARNING, f"retry failed: {_why(reasons)}")
        case {"event": "retried", "topics": topics}:
            return LogLine(logging.INFO, f"retry succeeded: {_counts(topics)}")
        case {"event": "discarded", "topics": topics}:
            return LogLine(logging.WARNING, f"discarded on request: {_counts(topics)}")
        case {"event": "throttled", "seconds": seconds, "client_id": client_id}:
            said = f"a Kafka quota throttles client id {client_id}, now for {seconds:.1f} s. "
            return LogLine(logging.WARNING, said + "Raise its producer_byte_rate, or send less")
        case {"event": "extents", "cluster": cluster, "shard": shard, "error": None}:
            return LogLine(logging.INFO, f"batches of shard {shard} have extents on cluster {cluster} again")
        case {"event": "extents", "cluster": cluster, "shard": shard, "error": error, "batches": batches}:
            said = f"batches of shard {shard} go without extents on cluster {cluster}, {batches} up to now: {error}"
            return LogLine(logging.WARNING, said)
        case {"event": "positions_started", "pid": pid}:
            return LogLine(logging.INFO, f"process {pid} replicates consumer groups' positions")
        case {"event": "positions", "groups": groups, "two_homes": two_homes, "away": away}:
            text = f"positions of {groups} consumer groups are replicated"
            text += f", but these are left alone, with two homes: {', '.join(two_homes)}" if two_homes else ""
            text += "".join(f"; cluster {cluster} is away: {why}" for cluster, why in away.items())
            return LogLine(logging.WARNING if two_homes or away else logging.INFO, text)
        case {"event": "ended", "reason": reason}:
            return LogLine(logging.INFO, f"the harvest has ended: {reason}")
        case {"event": "output", "line": line}:
            return LogLine(logging.WARNING, f"the harvesting process printed: {line}")
    return LogLine(logging.INFO, ", ".join(f"{name}: {value}" for name, value in event.items()))
