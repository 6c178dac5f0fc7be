"""The Kafka transaction of one producer: its states, and what an error in each of them means.

    UNFENCED ──fence──► READY ──begin──► OPEN ──commit──► COMMITTING ──acknowledged──► READY, or DOUBTFUL
        │                 │               │                   │
        └── any error ────┴───────────────┴──► ABANDONED      └── any other outcome ──► UNCERTAIN

- UNFENCED: earlier producers may still be at work. Nothing can be sent.
- READY: no transaction is open, and every earlier producer of the same transactional id is fenced.
- OPEN: records are being sent. Nothing of it is visible, and nothing will be unless this producer commits.
- COMMITTING: the commit was asked for.
- DOUBTFUL: the transaction is committed, but a request of it may have been sent twice. The producer begins no other.
- ABANDONED: the producer is given up. What was open is aborted when a successor fences it, or when it times out.
- UNCERTAIN: the producer is given up, and whether its transaction is committed only the ledger can tell.

A producer that is given up is never called again. It is not asked to abort either: an abort before the broker's first
acknowledgement can end in a fatal error, and calls after a fatal error can hang for ever; fencing, which the next view
does anyway, has the same effect. Of what the client says of an error (retriable, abortable, fatal) only *retriable* is
acted on, by calling again until a deadline. *Abortable* is not believed of a commit: one that has timed out may say so,
and be committed all the same.

**Requests that come twice.** When a connection breaks, the client sends a request again by itself, under the same
epoch, and tells nobody. The first copy may still be on its way. A late EndTxn that arrives in the *next* transaction of
the same epoch commits what has been produced of that one so far, without its entry in the ledger (KAFKA-17754). So a
producer whose transaction may have sent a request twice is DOUBTFUL: it is replaced by another of the same
transactional id, and initialising that one raises the epoch. The broker refuses every request of an older epoch.

A call that took longer than the client waits before it repeats a request may have sent one twice. This can't miss a
second EndTxn: the client repeats it only by way of its queue of retries, and nothing leaves that queue before
`retry.backoff.ms`, less a fifth for jitter, or `retry.backoff.max.ms` (`smallest_gap`; librdkafka 2.16,
`rd_kafka_broker_buf_retry`). A call is timed from before it is made until after it has returned, so a process that was
stopped meanwhile counts the stop as well. No request outlives its call: records are flushed, and so acknowledged,
before `publish` returns.

Of the other requests, late copies are harmless. A Produce is told from its first copy by its sequence number.
AddPartitionsToTxn, which the client may send again as soon as it has connected again, adds a partition to a transaction
that commits it with the others, or opens one without records, which the coordinator ends when its time is up: it holds
no reader back, and costs a term at most. InitProducerId raises the epoch whenever it comes: it fences, and so ends a
term, but commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_outbox.errors import KafkaError, PublishError, UncertainCommitError


class State(StrEnum):
    """Where the producer and its transaction are."""

    UNFENCED = "unfenced"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    DOUBTFUL = "doubtful"
    ABANDONED = "abandoned"
    UNCERTAIN = "uncertain"


class Call(StrEnum):
    """What the producer is asked for."""

    FENCE = "fence"
    BEGIN = "begin"
    PUBLISH = "publish"
    COMMIT = "commit"


_ALLOWED = {
    Call.FENCE: (State.UNFENCED, State.UNFENCED, State.READY),
    Call.BEGIN: (State.READY, State.READY, State.OPEN),
    Call.PUBLISH: (State.OPEN, State.OPEN, State.OPEN),
    Call.COMMIT: (State.OPEN, State.COMMITTING, State.READY),
}
"""For each call: the state it is allowed in, the state it is under way in, and the state it leads to."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a client says of an error. A time-out of ours is retriable: the same call may be made again."""

    text: str
    retriable: bool = False
    abortable: bool = False
    fatal: bool = False


JITTER = 0.2
"""The share of its back-off by which librdkafka may send a request again sooner (RD_KAFKA_RETRY_JITTER_PERCENT)."""


def smallest_gap(settings: Mapping[str, Any]) -> float:
    """After how many seconds, at the earliest, a client of these settings sends an EndTxn again by itself."""
    backoff, most = float(settings["retry.backoff.ms"]), float(settings["retry.backoff.max.ms"])
    return min(backoff * (1 - JITTER), most) / 1000


class Transaction:
    """The state of one producer. It decides; whoever holds the producer acts.

    `gap` is how many seconds pass before the client sends a request again: `smallest_gap`.
    """

    def __init__(self, *, gap: float) -> None:
        self.state = State.UNFENCED
        self._gap = gap
        self._is_doubtful = False

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_uncertain(self) -> bool:
        """Whether a commit was asked for that is not known to be acknowledged."""
        return self.state in (State.COMMITTING, State.UNCERTAIN)

    @property
    def needs_epoch(self) -> bool:
        """Whether the producer is to be replaced by one of a new epoch before the next transaction."""
        return self.state is State.DOUBTFUL

    def begins(self, call: Call) -> None:
        """A call is about to be made. Raises KafkaError for a producer that was given up."""
        needed, under_way, _ = _ALLOWED[call]
        if self.state is not needed:
            raise KafkaError(f"a producer that is {self.state} can't {call}: it needs another view")
        self.state = under_way

    def succeeded(self, call: Call, *, seconds: float) -> None:
        """A call has done what it was asked for, after so many seconds."""
        self._is_doubtful |= call is not Call.FENCE and seconds >= self._gap
        self.state = _ALLOWED[call][2]
        if call is Call.COMMIT and self._is_doubtful:
            self.state = State.DOUBTFUL

    def failed(self, call: Call, complaint: Complaint, *, in_time: bool) -> bool:
        """Whether to make the same call again; `in_time` tells whether its deadline allows that.

        If not, the producer is given up, and what is to be raised is raised: UncertainCommitError for a commit,
        PublishError for a record, else KafkaError.
        """
        if complaint.retriable and not complaint.fatal and in_time:
            return True
        raise self.given_up(call, complaint.text)

    def given_up(self, call: Call, reason: str) -> KafkaError:
        """The producer is of no use any more; the error to raise."""
        if call is Call.COMMIT:
            self.state = State.UNCERTAIN
            return UncertainCommitError(
                f"whether a batch is committed is not known: {reason}. The ledger tells the next view; nothing is lost"
            )
        self.state = State.ABANDONED
        if call is Call.PUBLISH:
            return PublishError(reason)
        return KafkaError(reason)
