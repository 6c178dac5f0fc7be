"""At most one record of a key in flight, in order, within the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.in_flight import InFlight
from airflow_outbox.values.records import MarkedRecord


def record(number: int, key: str = "k", topic: str = "t", value: str | None = "value") -> MarkedRecord:
    return MarkedRecord(number, topic, key, value, [], [], None)


def test_the_records_of_a_key_follow_each_other() -> None:
    in_flight = InFlight(max_records=10, max_bytes=1000)
    first, second, other = record(1), record(2), record(3, key="other")
    assert in_flight.admit([first, second, other]) == [first, other]
    assert in_flight.delivered(other) is None
    assert in_flight.delivered(first) == second
    assert in_flight.delivered(second) is None
    assert in_flight.admit([record(4)]) == [record(4)]


def test_topics_keep_their_keys_apart() -> None:
    in_flight = InFlight(max_records=10, max_bytes=1000)
    records = [record(1, topic="a"), record(2, topic="b")]
    assert in_flight.admit(records) == records


def test_records_count_until_they_are_purged() -> None:
    in_flight = InFlight(max_records=3, max_bytes=100)
    records = [record(1), record(2)]
    in_flight.admit(records)
    assert in_flight.room == (1, 100 - 2 * len("kvalue"))
    in_flight.delivered(records[0])
    assert in_flight.room[0] == 1
    in_flight.forget(records[:1])
    assert in_flight.room == (2, 100 - len("kvalue"))


def test_after_a_failure_nothing_more_goes_out() -> None:
    in_flight = InFlight(max_records=10, max_bytes=1000)
    a, b, a2, b2 = record(1, "a"), record(2, "b"), record(3, "a"), record(4, "b")
    in_flight.admit([a, b, a2, b2])
    in_flight.undeliverable(a)
    assert in_flight.unsettled == 1
    assert in_flight.delivered(b) is None
    assert in_flight.admit([record(5, "c")]) == []
    in_flight.forget([b])
    assert (in_flight.unsettled, in_flight.records, in_flight.bytes) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["deliver", "purge", "fail", "none"])), max_size=60))
def test_invariants_hold_whatever_happens(moves: list[tuple[int, str]]) -> None:
    in_flight = InFlight(max_records=1000, max_bytes=10**9)
    sent: list[MarkedRecord] = []
    delivered: list[MarkedRecord] = []
    history: dict[str | bytes, list[int]] = {}

    def send(records: list[MarkedRecord]) -> None:
        for each in records:
            assert not in_flight.failed
            assert each.key not in {other.key for other in sent}
            assert history.setdefault(each.key, []) == sorted(history[each.key])
            history[each.key].append(each.id)
            sent.append(each)

    for number, (key, move) in enumerate(moves):
        send(in_flight.admit([record(number, key=str(key))]))
        if move == "deliver" and sent:
            settled = sent.pop(key % len(sent))
            delivered.append(settled)
            following = in_flight.delivered(settled)
            send([following] if following else [])
        elif move == "fail" and sent:
            in_flight.undeliverable(sent.pop())
        elif move == "purge":
            in_flight.forget(delivered)
            delivered.clear()
        assert in_flight.unsettled == len(sent)
    in_flight.stop()
    assert in_flight.records == len(sent) + len(delivered)
