"""A driver that has the package as it is installed, and no Airflow: it writes without a word about the data source."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

given = json.loads(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([("k", "v")], "key string, value string")
frame.write.format("outbox").option("url", given["url"]).option("topic", "t").mode("append").save()
Path(given["report"]).write_text(json.dumps({"loaded": [name for name in sys.modules if "airflow" in name]}))
spark.stop()
