"""The words in which `airflow-outbox status` tells how an outbox is."""

from __future__ import annotations

from rich.text import Text

from airflow_outbox.operate.parked_requests import ParkedCounts
from airflow_outbox.operate.status import OutboxStatus, ShardStatus
from airflow_outbox.values.terminal import escaped
from airflow_outbox.values.verdict import State, in_words

COLOURS = {
    State.HEALTHY: "green",
    State.LAGGING: "yellow",
    State.PAUSED: "cyan",
    State.HELD: "yellow",
    State.STALLED: "red",
    State.HALTED: "red",
    State.NO_LEADER: "red",
    State.UNKNOWN: "magenta",
}


def plain(text: str) -> Text:
    """Plain text without effect: nothing in it acts as markup or controls a terminal."""
    return Text(escaped(text))


def waiting(found: OutboxStatus) -> str:
    """How many records wait, and for how long."""
    if found.backlog is None:
        return "counting what waits takes too long, because of dead rows"
    text = f"{'' if found.backlog_is_exact else 'more than '}{found.backlog} records wait"
    return text if found.oldest_age is None else f"{text}, the oldest for {in_words(found.oldest_age)}"


def leader(shard: ShardStatus, session_timeout: float) -> str:
    """The leader of a shard, or why there is none."""
    if shard.silent_for is None:
        return "nobody yet"
    if shard.member is None:
        return "nobody"
    if shard.silent_for < 0:
        return f"nobody; {shard.member} was last heard from before Postgres' clock was set back"
    if shard.silent_for > session_timeout:
        return f"nobody; {shard.member} was last heard from {in_words(shard.silent_for)} ago"
    return f"{shard.member}{' (paused)' if shard.paused else ''}"


def parked(counts: ParkedCounts) -> str | None:
    """The parked records in words; None when there are none."""
    if not counts.refused and not counts.waiting:
        return None
    causes = ", ".join(f"{count} {cause}" for cause, count in counts.refused.items()) or "none refused"
    text = f"parked: {causes}; {counts.waiting} wait behind them"
    if counts.transactions_refused is not None:
        text += f" (transactions: {counts.transactions_refused} with a refused record, {counts.transactions_held} held)"
    return text
