"""The Kafka transaction of one producer: its states, and the meaning of an error in each.

    UNFENCED ──fence──► READY ──begin──► OPEN ──commit──► COMMITTING ──acknowledged──► READY, or DOUBTFUL
        │                 │               │                   │
        └── any error ────┴───────────────┴──► ABANDONED      └── any other outcome ──► UNCERTAIN

- UNFENCED: earlier producers may still be at work. Nothing can be sent.
- READY: no transaction is open, and every earlier producer of the same transactional id is fenced.
- OPEN: records are being sent. None is visible, and none will be unless this producer commits.
- COMMITTING: the commit was asked for.
- DOUBTFUL: the transaction is committed, but a request of it may have been sent twice. The producer begins no other.
- ABANDONED: the producer is given up. Its open transaction is aborted when a successor fences it, or by time-out.
- UNCERTAIN: the producer is given up. Only the ledger can tell whether its transaction is committed.

A producer that is given up is never called again, not even to abort. An abort before the broker's first acknowledgement
can end in a fatal error, and calls after a fatal error can hang for ever. Fencing, which the next view does anyway, has
the same effect. The client calls an error retriable, abortable or fatal. The producer acts only on *retriable*, by
calling again until a deadline. *Abortable* is not believed of a commit: one that timed out may say so and still be
committed.

**Requests that come twice.** When a connection breaks, the client silently sends a request again under the same epoch.
The first copy may still be on its way. If it is an EndTxn that arrives in the *next* transaction of the same epoch, it
commits what that one has produced so far, without its entry in the ledger (KAFKA-17754). So a producer whose
transaction may have sent a request twice is DOUBTFUL. It is replaced by another of the same transactional id, and
initialising that one raises the epoch. The broker refuses every request of an older epoch.

A call may have sent a request twice if it took longer than the client waits before a repetition. This can't miss a
second EndTxn: the client repeats it only through its queue of retries, and nothing leaves that queue before
`retry.backoff.ms`, less a fifth for jitter, or `retry.backoff.max.ms` (`smallest_gap`; librdkafka 2.16,
`rd_kafka_broker_buf_retry`). A call is timed from before it is made until after it has returned, so the time in which
the process was stopped counts as well. No request outlives its call: records are flushed, and so acknowledged, before
`publish` returns.

Late copies of the other requests are harmless:

- Produce: its sequence number tells it from its first copy.
- AddPartitionsToTxn: the client may send it again as soon as it has reconnected. It adds a partition to a transaction
  that commits it with the others. Or it opens one without records, which the coordinator ends when its time is up; that
  holds no reader back and costs at most a term.
- InitProducerId: it raises the epoch whenever it comes. It fences, and so ends a term, but commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_outbox.errors import KafkaError, PublishError, UncertainCommitError


class ProducerState(StrEnum):
    """Where the producer and its transaction are."""

    UNFENCED = "unfenced"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    DOUBTFUL = "doubtful"
    ABANDONED = "abandoned"
    UNCERTAIN = "uncertain"


class Call(StrEnum):
    """The calls of a producer."""

    FENCE = "fence"
    BEGIN = "begin"
    PUBLISH = "publish"
    COMMIT = "commit"


_ALLOWED = {
    Call.FENCE: (ProducerState.UNFENCED, ProducerState.UNFENCED, ProducerState.READY),
    Call.BEGIN: (ProducerState.READY, ProducerState.READY, ProducerState.OPEN),
    Call.PUBLISH: (ProducerState.OPEN, ProducerState.OPEN, ProducerState.OPEN),
    Call.COMMIT: (ProducerState.OPEN, ProducerState.COMMITTING, ProducerState.READY),
}
"""For each call: the state it is allowed in, the state it is under way in, and the state it leads to."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A client's report of an error. A time-out of ours is retriable: the same call may be made again."""

    text: str
    retriable: bool = False
    abortable: bool = False
    fatal: bool = False


JITTER = 0.2
"""The share of its back-off by which librdkafka may send a request again sooner (RD_KAFKA_RETRY_JITTER_PERCENT)."""


def smallest_gap(settings: Mapping[str, Any]) -> float:
    """The seconds after which, at the earliest, a client of these settings sends an EndTxn again by itself."""
    backoff, most = float(settings["retry.backoff.ms"]), float(settings["retry.backoff.max.ms"])
    return min(backoff * (1 - JITTER), most) / 1000


class Transaction:
    """The state of one producer. It decides; the holder of the producer acts.

    The client sends a request again after `gap` seconds at the earliest: `smallest_gap`.
    """

    def __init__(self, *, gap: float) -> None:
        self.state = ProducerState.UNFENCED
        self._gap = gap
        self._is_doubtful = False

    @property
    def is_open(self) -> bool:
        return self.state is ProducerState.OPEN

    @property
    def is_uncertain(self) -> bool:
        """Whether a commit was asked for and is not known to be acknowledged."""
        return self.state in (ProducerState.COMMITTING, ProducerState.UNCERTAIN)

    @property
    def needs_epoch(self) -> bool:
        """Whether one of a new epoch must replace the producer before the next transaction."""
        return self.state is ProducerState.DOUBTFUL

    def begins(self, call: Call) -> None:
        """A call is about to be made. Raises KafkaError for a producer that was given up."""
        needed, under_way, _ = _ALLOWED[call]
        if self.state is not needed:
            raise KafkaError(f"a producer that is {self.state} can't {call}: it needs another view")
        self.state = under_way

    def succeeded(self, call: Call, *, seconds: float) -> None:
        """A call has succeeded after this many seconds."""
        self._is_doubtful |= call is not Call.FENCE and seconds >= self._gap
        self.state = _ALLOWED[call][2]
        if call is Call.COMMIT and self._is_doubtful:
            self.state = ProducerState.DOUBTFUL

    def failed(self, call: Call, complaint: Complaint, *, in_time: bool) -> bool:
        """Return whether to make the same call again. `in_time`: its deadline allows that.

        If not, give the producer up and raise UncertainCommitError for a commit, PublishError for a record, else
        KafkaError.
        """
        if complaint.retriable and not complaint.fatal and in_time:
            return True
        raise self.given_up(call, complaint.text)

    def given_up(self, call: Call, reason: str) -> KafkaError:
        """Give the producer up. Return the error to raise."""
        if call is Call.COMMIT:
            self.state = ProducerState.UNCERTAIN
            return UncertainCommitError(
                f"nobody knows yet whether a batch was committed: {reason}. The next view reads it from the ledger; "
                "nothing is lost"
            )
        self.state = ProducerState.ABANDONED
        if call is Call.PUBLISH:
            return PublishError(reason)
        return KafkaError(reason)
