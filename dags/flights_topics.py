"""The reading side of the Dag `flights_check`: flights as the topics tell of them, counted by Spark.

Each partition is read by one of Spark's tasks, with a plain consumer that reads committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

Place = tuple[str, int]
Counts = dict[tuple[str, str], tuple[int, int, int]]
COLUMNS = "source_row INT, place BIGINT, day STRING, origin STRING, status STRING, departure_delay INT"


def places(kafka: Mapping[str, Any], topics: Sequence[str]) -> list[Place]:
    """The partitions of the topics."""
    consumer = reader(kafka)
    try:
        return [
            (topic, number) for topic in topics for number in consumer.list_topics(topic, 30).topics[topic].partitions
        ]
    finally:
        consumer.close()


def flights(kafka: Mapping[str, Any], place: Place) -> Iterator[tuple[Any, ...]]:
    """The flights that the events in a partition tell of, in their order; rows of COLUMNS."""
    consumer = reader(kafka)
    try:
        consumer.assign([TopicPartition(*place, 0)])
        while True:
            for message in consumer.consume(5000, 1.0):
                error = message.error()
                if error is None:
                    flight, row = json.loads(message.value()), dict(message.headers())["source-row"]
                    values = (flight[name] for name in ("day", "origin", "status", "departure_delay"))
                    yield int(row), message.offset(), *values
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def reader(kafka: Mapping[str, Any]) -> Consumer:
    own = {
        "group.id": "none",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    return Consumer({**kafka, **own, "isolation.level": "read_committed"})


def count(spark: SparkSession, kafka: Mapping[str, Any], topics: Sequence[str]) -> Counts:
    """By day and airport: flights, cancelled ones, and the sum of departure delays, by the last event of each."""
    wanted = places(kafka, topics)
    read = spark.sparkContext.parallelize(wanted, len(wanted)).flatMap(lambda place: flights(kafka, place))
    told = F.struct("day", "origin", "status", "departure_delay")
    latest = spark.createDataFrame(read, COLUMNS).groupBy("source_row").agg(F.max_by(told, "place").alias("flight"))
    counted = latest.groupBy("flight.day", "flight.origin").agg(
        F.count("*"),
        F.count_if(F.col("flight.status") == "cancelled"),
        F.sum(F.coalesce("flight.departure_delay", F.lit(0))),
    )
    return {(day, origin): tuple(numbers) for day, origin, *numbers in counted.collect()}
