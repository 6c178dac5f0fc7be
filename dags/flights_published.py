"""The Dags `flights_published` and `flights_check`: know when a Spark job's events are in Kafka, and go on from there.

`flights_published` writes flights like the Dag `flights`, and then waits until all events of that transaction are
published. `flights_check` is scheduled on the outbox as an asset, so it runs whenever transactions were published, also
after the last one of a burst. Spark then reads the topics, and its counts must agree with the business tables. So the
newest run has compared everything.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_outbox import stash
from airflow_outbox.assets import outbox_asset
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.sensors.published import OutboxPublishedSensor

HERE = Path(__file__).parent
AIRPORTS = ("EWR", "JFK", "LGA")

with DAG(
    "flights_published",
    schedule=None,
    max_active_runs=1,
    params={
        "month": Param(1, type=["integer", "null"], minimum=1, maximum=12, description="of 2013; all when empty"),
        "rows": Param(None, type=["integer", "null"], minimum=1, description="only so many, the first in the file"),
    },
    doc_md=__doc__,
):
    write_flights = OutboxSparkSubmitOperator(
        task_id="write_flights",
        conn_id="spark_default",
        postgres_conn_id="flights_db",
        application=str(HERE / "flights_job.py"),
        application_args=["--month={{ params.month or '' }}", "--rows={{ params.rows or '' }}"],
        retries=1,
    )
    OutboxPublishedSensor(
        task_id="published",
        postgres_conn_id="flights_db",
        ticket=write_flights.output,
        retries=2,  # safe: each try looks again
        retry_delay=timedelta(seconds=5),
    )

# The host can be any name that stands for the database wherever the asset is named.
outbox = outbox_asset("outbox://flights-db/flights/outbox", postgres_conn_id="flights_db")

with DAG("flights_check", schedule=[outbox], max_active_runs=1, doc_md=__doc__):

    @task.pyspark(conn_id="spark_default")
    def compare(spark) -> dict[str, int]:
        """Compare the topics with the table `daily_delays`; return how many rows and flights were compared."""
        from flights_topics import count

        hook = OutboxHook(postgres_conn_id="flights_db", kafka_conn_id="kafka_default")
        with hook.transaction() as connection:
            # The ticket of a transaction that stashes nothing. Once it is published, so is all that was committed
            # before, and the topics hold what the table says now.
            ticket = stash(connection, [])
            rows = connection.execute("SELECT day::text, origin, flights, cancelled, departure_delay FROM daily_delays")
            expected = {(day, origin): tuple(numbers) for day, origin, *numbers in rows}
        hook.wait_until_published(ticket, timeout=300)

        spark.sparkContext.addPyFile(str(HERE / "flights_topics.py"))
        found = count(spark, hook.kafka_settings(), [f"flights.{airport}" for airport in AIRPORTS])
        # Later transactions may be in the topics, too.
        wrong = {key: (found.get(key), numbers) for key, numbers in expected.items() if found.get(key) != numbers}
        if wrong:
            raise ValueError(f"topics and table differ (day, airport: in the topics, in the table): {wrong}")
        return {"compared": len(expected), "flights": sum(flights for flights, *_ in expected.values())}

    compare()
