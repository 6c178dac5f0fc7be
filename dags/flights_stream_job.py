"""A PySpark job: the same flights as in `flights_job.py`, as a stream of files, one a day.

Run by the Dag `flights_stream`. Each batch of the stream is one transaction, which fills the tables and stashes the
events, once. A run after one that ended half-way continues there, and a second run for a month writes nothing.
"""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from flights_job import COMMIT_SQL, SCHEMA, arguments, clean, events, source_lines
from pyspark.sql import SparkSession

from airflow_outbox.spark import register

FILES_A_BATCH = 10


def deliver(lines: list[str], folder: Path) -> None:
    """Write the flights of each day as one file, as if an airport sent it: whole, and newer than the day before's.

    A file that is there already stays as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for (year, month, day), of_day in groupby(lines, key=lambda line: tuple(map(int, line.split(",", 4)[1:4]))):
        flights = list(of_day)
        first_row = int(flights[0].split(",")[0])
        file = folder / f"{year}-{month:02}-{day:02}.csv"
        if not file.exists():
            unfinished = file.with_name(f".{file.name}")
            unfinished.write_text("\n".join(flights) + "\n")
            os.utime(unfinished, (first_row, first_row))  # a stream reads files in the order of their ages
            unfinished.rename(file)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the files, and the checkpoint beside them")
    chosen = parser.parse_args()
    deliver(source_lines(chosen.month, chosen.rows), chosen.folder / "delivered")

    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    files = spark.readStream.schema(SCHEMA).option("nullValue", "NA").option("mode", "FAILFAST")
    flights = clean(files.option("maxFilesPerTrigger", FILES_A_BATCH).csv(str(chosen.folder / "delivered")))
    write = events(flights).writeStream.format("outbox").option("orderBy", "source_row").option("commitSql", COMMIT_SQL)
    checkpoint = str(chosen.folder / "checkpoint")
    # The query takes the files there now, and then ends; without the trigger it would go on with the files to come.
    write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
