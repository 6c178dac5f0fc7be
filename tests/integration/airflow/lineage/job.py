"""A Spark job that stashes one record. Spark runs it, not Airflow."""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_outbox.spark import register

spark = SparkSession.builder.getOrCreate()
register(spark)
frame = spark.range(1).selectExpr("'t' AS topic", "'k' AS key", "'v' AS value")
frame.write.format("outbox").mode("append").save()
spark.stop()
