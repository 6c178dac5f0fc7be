"""Who waits for a look-up, with a book whose answers each test gives itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import pytest

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka import look_ups
from airflow_outbox.harvest.kafka.look_ups import LookUps
from airflow_outbox.values.pages import TOPIC
from airflow_outbox.values.refusals import Cause, Refusal

PATIENCE = 60.0


class Book:
    """Knows topics once they are looked up, which takes until `answer` is set. `earlier` ones were known before."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.earlier: set[str] = set()
        self.asked: list[set[str]] = []
        self.answer = threading.Event()
        self.failure: KafkaError | None = None

    @property
    def knows_some(self) -> bool:
        return bool(self.known | self.earlier)

    def unknown(self, topics: Collection[str], *, believing: bool = False) -> set[str]:
        if believing:
            self.known |= self.earlier.intersection(topics)
        return set(topics) - self.known

    def look_up(self, topics: Collection[str]) -> None:
        self.asked.append({*topics})
        assert self.answer.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.known |= {*topics}

    def examine(self, rows: Sequence[Any], *, again: bool) -> dict[int, Refusal]:
        assert again or not self.unknown([row[TOPIC] for row in rows])
        return {}


def rows(*topics: str) -> Sequence[Any]:
    return [(number, topic, "k", "v", [], [], None, 2, None) for number, topic in enumerate(topics)]


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
async def examined(book: Book, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LookUps]:
    """By somebody who waits for no round."""
    monkeypatch.setattr(look_ups, "_PATIENCE", 0.0)
    monkeypatch.setattr(look_ups, "_LITTLE_PATIENCE", 0.0)
    found = LookUps(book)  # type: ignore[arg-type]
    yield found
    book.answer.set()
    found.end()


async def until_asked(book: Book, times: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(book.asked) < times:
            await asyncio.sleep(0.001)


async def until_known(book: Book, *topics: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not book.known >= {*topics}:
            await asyncio.sleep(0.001)


async def until_round_is_over(examined: LookUps) -> None:
    assert examined._round is not None
    await asyncio.wait([examined._round], timeout=PATIENCE)


async def test_the_first_topics_of_all_are_waited_for(book: Book, examined: LookUps) -> None:
    examining = asyncio.create_task(examined.examine(rows("a", "b")))
    await until_asked(book, 1)
    assert not examining.done()
    book.answer.set()
    assert await examining == {}


async def test_records_of_a_topic_that_takes_long_are_set_aside_and_others_are_not(
    book: Book, examined: LookUps
) -> None:
    book.known = {"known"}
    found = await examined.examine(rows("slow", "known", "slow"))
    assert {number: refusal.cause for number, refusal in found.items()} == {0: Cause.UNTRIED, 2: Cause.UNTRIED}
    assert "topic slow" in found[0].reason
    book.answer.set()
    await until_known(book, "slow")
    assert await examined.examine(rows("slow")) == {}


async def test_a_quick_answer_is_waited_for(book: Book, examined: LookUps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ups, "_PATIENCE", PATIENCE)
    book.known, patient = {"known"}, LookUps(book)  # type: ignore[arg-type]
    examining = asyncio.create_task(patient.examine(rows("new")))
    await until_asked(book, 1)
    assert not examining.done()
    book.answer.set()
    assert await examining == {}
    patient.end()


async def test_topics_that_come_meanwhile_are_looked_up_together_afterwards(book: Book, examined: LookUps) -> None:
    book.known = {"known"}
    assert await examined.examine(rows("a"))
    await until_asked(book, 1)
    assert await examined.examine(rows("b"))
    assert await examined.examine(rows("c"))
    assert book.asked == [{"a"}]
    book.answer.set()
    await until_round_is_over(examined)
    book.answer.clear()
    assert await examined.examine(rows("d"))
    await until_asked(book, 2)
    assert book.asked == [{"a"}, {"b", "c", "d"}]


async def test_after_an_answer_that_took_long_nobody_waits_until_one_comes_soon(
    book: Book, examined: LookUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.known = {"known"}
    assert await examined.examine(rows("a"))
    monkeypatch.setattr(look_ups, "_PATIENCE", PATIENCE)
    examined._began_at -= 2 * PATIENCE
    book.answer.set()
    await until_round_is_over(examined)
    book.answer.clear()
    async with asyncio.timeout(PATIENCE / 2):
        assert await examined.examine(rows("b")), "the last answer took long"
    book.answer.set()
    await until_round_is_over(examined)
    book.answer.clear()
    examining = asyncio.create_task(examined.examine(rows("c")))
    await until_asked(book, 3)
    assert not examining.done(), "the last answer came soon"
    book.answer.set()
    assert await examining == {}


async def test_a_topic_that_was_known_until_lately_is_believed(book: Book, examined: LookUps) -> None:
    book.earlier = {"old"}
    assert await examined.examine(rows("old")) == {}
    await until_asked(book, 1)
    assert book.asked == [{"old"}]


async def test_a_failure_is_told_to_whoever_waits(book: Book, examined: LookUps) -> None:
    book.failure = KafkaError("no broker answers")
    examining = asyncio.create_task(examined.examine(rows("a")))
    await until_asked(book, 1)
    book.answer.set()
    with pytest.raises(KafkaError, match="no broker answers"):
        await examining


async def test_a_failure_for_which_nobody_waits_harms_nobody(book: Book, examined: LookUps) -> None:
    book.known, book.failure = {"known"}, KafkaError("no broker answers")
    book.answer.set()
    async with asyncio.timeout(PATIENCE):
        while len(book.asked) < 2:  # it is asked again when the topic's next record comes
            assert await examined.examine(rows("a"))
            await asyncio.sleep(0.001)
