"""Which of many outboxes are harvested now: as many as there are places, the longest waiting first, and in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.places import IDLE_WHILE_OTHERS_WAIT, TURN, Awake, Moves, moves

NOW = 1000.0
BUSY = Awake(NOW - 1, NOW)


def due(
    *, waiting: dict[str, float] | None = None, awake: dict[str, Awake] | None = None, places: int = 2
) -> Moves[str]:
    return moves(NOW, waiting=waiting or {}, awake=awake or {}, places=places, rest_after=60.0)


def test_who_has_waited_longest_gets_a_place() -> None:
    assert due(waiting={"a": 3, "b": 1, "c": 2}, awake={"x": BUSY}, places=3) == Moves(("b", "c"))


def test_an_outbox_rests_when_it_has_long_had_nothing_to_do() -> None:
    assert due(awake={"x": Awake(0, NOW - 60), "y": Awake(0, NOW - 59)}) == Moves((), ("x",))


def test_an_idle_one_makes_room_for_others_at_once() -> None:
    idle = Awake(0, NOW - IDLE_WHILE_OTHERS_WAIT)
    longer = Awake(NOW - 5, NOW - IDLE_WHILE_OTHERS_WAIT - 1)
    assert due(waiting={"a": 1}, awake={"x": idle, "y": longer}) == Moves((), ("y",))
    assert due(waiting={"a": 1}, awake={"x": idle}) == Moves(("a",))


def test_a_busy_one_makes_room_only_after_its_turn() -> None:
    done = Awake(NOW - TURN, NOW)
    longer = Awake(NOW - TURN - 1, NOW)
    assert due(waiting={"a": 1}, awake={"x": BUSY, "y": BUSY}) == Moves()
    assert due(waiting={"a": 1}, awake={"x": done, "y": longer}) == Moves((), ("y",))
    assert due(waiting={"a": 1, "b": 1}, awake={"x": done, "y": BUSY}) == Moves((), ("x",))


def test_one_that_is_leaving_makes_room_already() -> None:
    leaving = Awake(0, float("-inf"))
    assert due(waiting={"a": 1}, awake={"x": leaving, "y": Awake(0, NOW)}) == Moves((), ("x",))


times = st.floats(0, NOW)


@given(
    waiting=st.dictionaries(st.integers(0, 9), times),
    awake=st.dictionaries(st.integers(10, 19), st.builds(Awake, times, times)),
    places=st.integers(1, 12),
)
def test_there_are_never_more_than_places_and_nobody_waits_beside_a_free_one(
    waiting: dict[int, float], awake: dict[int, Awake], places: int
) -> None:
    found = moves(NOW, waiting=waiting, awake=awake, places=places, rest_after=60.0)
    assert len(found.wake) + len(awake) <= max(places, len(awake))
    assert len(found.wake) == min(len(waiting), max(0, places - len(awake)))
    assert {*found.wake} <= waiting.keys()
    assert {*found.rest} <= awake.keys()
    kept_waiting = len(waiting) - len(found.wake)
    assert len([outbox for outbox in found.rest if NOW - awake[outbox].busy_at < 60.0]) <= kept_waiting
