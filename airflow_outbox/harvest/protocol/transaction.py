"""The Kafka transaction of one producer: its states, and what an error in each of them means.

    UNFENCED ──fence──► READY ──begin──► OPEN ──commit──► COMMITTING ──acknowledged──► READY
        │                 │               │                   │
        └── any error ────┴───────────────┴──► ABANDONED      └── any other outcome ──► UNCERTAIN

- UNFENCED: earlier producers may still be at work. Nothing can be sent.
- READY: no transaction is open, and every earlier producer of the same transactional id is fenced.
- OPEN: records are being sent. Nothing of it is visible, and nothing will be unless this producer commits.
- COMMITTING: the commit was asked for.
- ABANDONED: the producer is given up. What was open is aborted when a successor fences it, or when it times out.
- UNCERTAIN: the producer is given up, and whether its transaction is committed only the ledger can tell.

A producer that is given up is never called again. It is not asked to abort either: an abort before the broker's first
acknowledgement can end in a fatal error, and calls after a fatal error can hang for ever; fencing, which the next view
does anyway, has the same effect. Of what the client says of an error (retriable, abortable, fatal) only *retriable* is
acted on, by calling again until a deadline. *Abortable* is not believed of a commit: one that has timed out may say so,
and be committed all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_outbox.errors import KafkaError, PublishError, UncertainCommitError


class State(StrEnum):
    """Where the producer and its transaction are."""

    UNFENCED = "unfenced"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
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


class Transaction:
    """The state of one producer. It decides; whoever holds the producer acts."""

    def __init__(self) -> None:
        self.state = State.UNFENCED

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    def begins(self, call: Call) -> None:
        """A call is about to be made. Raises KafkaError for a producer that was given up."""
        needed, under_way, _ = _ALLOWED[call]
        if self.state is not needed:
            raise KafkaError(f"a producer that is {self.state} can't {call}: it needs another view")
        self.state = under_way

    def succeeded(self, call: Call) -> None:
        """A call has done what it was asked for."""
        self.state = _ALLOWED[call][2]

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
