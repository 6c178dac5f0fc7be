"""How a single request to Kafka may be mistreated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faults.frames import Api, Request

Step = tuple[Api, int]
"""So many requests of a kind that have to be answered."""

NEXT_TRANSACTION: tuple[Step, ...] = ((Api.END, 1), (Api.PRODUCE, 3))
"""The client's own copy of EndTxn has ended the transaction, and the next one of that id has produced three times."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The broker never gets it, and the client waits for an answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is cut: before the broker gets the request, or when its answer comes."""

    answered: bool


@dataclass(frozen=True, slots=True)
class Twice:
    """The broker gets it twice, one copy right after the other; the client hears the first answer."""


@dataclass(frozen=True, slots=True)
class Delay:
    """It waits, and with it what comes after it on its connection."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits, and with it what comes after it on its connection, until it is delivered."""


@dataclass(frozen=True, slots=True)
class Late:
    """The client's side of its connection is cut, and the broker gets it on the old connection when, one step after the
    other, so many requests of the same transactional id are answered without an error. Without steps it waits until
    `Mistreatment.deliver`.
    """

    after: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """The broker never gets it, and the client is answered this error: of Produce for all of its records, of
    AddPartitionsToTxn for the partitions of one topic. The broker attempts no others then.
    """

    code: int
    topic: str = ""


Treatment = Drop | Cut | Twice | Delay | Hold | Late | Refuse
Rule = Callable[[Request], Treatment | None]
