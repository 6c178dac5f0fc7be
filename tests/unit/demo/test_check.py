"""The checker must notice every way in which a history can be wrong: here are broken ones."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from zlib import crc32

import pytest

from airflow_outbox.demo.check import CheckResult, Delivered, compare, shown
from airflow_outbox.demo.flights import ALL_FLIGHTS, JANUARY_FLIGHTS, TOPICS, Flight, read_flights

RIGHT = CheckResult(delivered=2000, missing=0, duplicates=0, out_of_order=0, problems=())


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return list(read_flights(month=1, rows=2000))


@pytest.fixture
def history(flights: list[Flight]) -> list[Delivered]:
    """The records that arrive when all goes well: by topic, each in the order of the file."""
    in_topics = sorted(flights, key=lambda flight: (flight.topic, flight.source_row))
    return [delivered(flight) for flight in in_topics]


def delivered(flight: Flight) -> Delivered:
    headers = (("schema", "flight/1"), ("source-row", str(flight.source_row)))
    return Delivered(flight.topic, crc32(flight.key.encode()) % 4, flight.key, json.dumps(flight.event()), headers)


def two_of_one_key(history: list[Delivered]) -> tuple[int, int]:
    """The places of two records of one topic and key."""
    counts = Counter((record.topic, record.key) for record in history)
    (topic, key), _ = counts.most_common(1)[0]
    first, second, *_ = (place for place, record in enumerate(history) if (record.topic, record.key) == (topic, key))
    return first, second


def test_a_right_history_has_no_problem(flights: list[Flight], history: list[Delivered]) -> None:
    assert compare(flights, history) == RIGHT


def test_order_between_keys_is_free(flights: list[Flight], history: list[Delivered]) -> None:
    by_key = sorted(history, key=lambda record: record.key)
    assert compare(flights, by_key) == RIGHT


def test_a_missing_record(flights: list[Flight], history: list[Delivered]) -> None:
    gone = history.pop(17)
    verdict = compare(flights, history)
    assert (verdict.delivered, verdict.missing, verdict.duplicates, verdict.out_of_order) == (1999, 1, 0, 0)
    assert verdict.problems == (f"row {gone.source_row} did not arrive",)


def test_no_record_at_all(flights: list[Flight]) -> None:
    assert compare(flights, []).missing == 2000


@pytest.mark.parametrize("place", [18, 2000])
def test_a_doubled_record(flights: list[Flight], history: list[Delivered], place: int) -> None:
    history.insert(place, history[17])
    verdict = compare(flights, history)
    assert (verdict.delivered, verdict.missing, verdict.duplicates, verdict.out_of_order) == (2001, 0, 1, 0)
    assert verdict.problems == (f"row {history[17].source_row} arrived 2 times",)


def test_two_records_of_a_key_in_the_wrong_order(flights: list[Flight], history: list[Delivered]) -> None:
    first, second = two_of_one_key(history)
    history[first], history[second] = history[second], history[first]
    verdict = compare(flights, history)
    assert (verdict.missing, verdict.duplicates, verdict.out_of_order) == (0, 0, 1)
    assert verdict.problems


def test_a_key_in_two_partitions_has_no_order(flights: list[Flight], history: list[Delivered]) -> None:
    _, second = two_of_one_key(history)
    history[second] = replace(history[second], partition=history[second].partition + 1)
    assert compare(flights, history).out_of_order >= 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", "flights.XXX"),
        ("key", "N00000"),
        ("value", "{}"),
        ("value", "not JSON"),
        ("value", None),
        ("headers", (("source-row", "7"),)),
        ("headers", (("schema", "flight/2"), ("source-row", "7"))),
        ("headers", (("schema", "flight/1"), ("source-row", "7"), ("source-row", "7"))),
    ],
)
def test_a_record_that_is_not_the_right_one(
    flights: list[Flight], history: list[Delivered], field: str, value: object
) -> None:
    place = next(place for place, record in enumerate(history) if record.source_row == 7)
    history[place] = replace(history[place], **{field: value})
    verdict = compare(flights, history)
    assert verdict.missing == 1
    assert len(verdict.problems) == 1
    assert verdict.problems[0].startswith(f"row 7 arrived with {field}")


def test_one_value_differs_in_one_field(flights: list[Flight], history: list[Delivered]) -> None:
    event = json.loads(history[5].value or "")
    history[5] = replace(
        history[5], value=json.dumps({**event, "departure_delay": (event["departure_delay"] or 0) + 1})
    )
    assert compare(flights, history).missing == 1


@pytest.mark.parametrize("headers", [(), (("source-row", "x"),), (("source-row", "²"),), (("schema", "flight/1"),)])
def test_a_record_of_no_row(
    flights: list[Flight], history: list[Delivered], headers: tuple[tuple[str, str], ...]
) -> None:
    history.append(replace(history[0], headers=headers))
    verdict = compare(flights, history)
    assert (verdict.delivered, verdict.missing) == (2001, 0)
    assert len(verdict.problems) == 1


def test_a_record_of_a_row_beyond_the_input(flights: list[Flight], history: list[Delivered]) -> None:
    history.append(replace(history[0], headers=(("schema", "flight/1"), ("source-row", "2001"))))
    verdict = compare(flights, history)
    assert verdict.missing == 0
    assert "row 2001 arrived and is not in the input" in verdict.problems


def test_many_problems_are_shortened() -> None:
    assert shown([str(number) for number in range(12)]) == [*(str(number) for number in range(10)), "and 2 more"]
    assert shown(["one"]) == ["one"]


def test_january_is_as_known() -> None:
    january = list(read_flights(month=1, rows=None))
    assert len(january) == JANUARY_FLIGHTS
    assert [flight.source_row for flight in january] == list(range(1, JANUARY_FLIGHTS + 1))
    assert {flight.topic for flight in january} == set(TOPICS)
    assert january[0].event() == {
        "day": "2013-01-01",
        "carrier": "UA",
        "flight": 1545,
        "tail_number": "N14228",
        "origin": "EWR",
        "destination": "IAH",
        "scheduled_departure": "2013-01-01T10:15:00Z",
        "departure": "2013-01-01T10:17:00Z",
        "departure_delay": 2,
        "arrival_delay": 11,
        "air_time": 227,
        "distance": 1400,
        "status": "flown",
    }
    assert Counter(flight.status for flight in january) == {"flown": 26398, "cancelled": 521, "diverted": 85}
    unknown_aircraft = [flight for flight in january if flight.tail_number is None]
    assert unknown_aircraft
    assert all(flight.key == flight.carrier for flight in unknown_aircraft)


def test_the_file_begins_with_january_and_holds_all_flights() -> None:
    *_, last = read_flights(month=None, rows=JANUARY_FLIGHTS + 1)
    assert (last.source_row, last.day.month) == (JANUARY_FLIGHTS + 1, 10)
    december = list(read_flights(month=12, rows=None))
    assert len(december) == 28_135
    *_, last = read_flights(month=9, rows=None)
    assert last.source_row == ALL_FLIGHTS
