"""A driver on its own machine: a stream over files, to be killed at any moment, and started again."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_outbox.spark import register


def main() -> None:
    given = json.loads(sys.argv[1])
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.streaming.minBatchesToRetain": "1000",  # which batches there were is asked at the end
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    register(spark)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(given["source"])
    number = F.col("value").cast("bigint")
    records = lines.select(
        F.lit("numbers").alias("topic"),
        F.concat(F.lit("key-"), number % 10).alias("key"),
        F.col("value"),
        number.alias("number"),
    ).repartition(3)
    writer = records.writeStream.format("outbox").options(url=given["url"], orderBy="number", **given["options"])
    query = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
