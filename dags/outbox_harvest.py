"""The Dag `outbox_harvest`: once it is unpaused, all that is committed to the outbox is published to Kafka.

When the run ends, in any way, Airflow starts the next one; for that a continuous Dag must have a start date. To end the
harvest, pause the Dag and then mark the task: pausing alone ends no run.
"""

from datetime import datetime

from airflow.sdk import DAG

from airflow_outbox.sensors.harvest import OutboxHarvestSensor

with DAG("outbox_harvest", schedule="@continuous", start_date=datetime(2025, 1, 1), max_active_runs=1, doc_md=__doc__):
    OutboxHarvestSensor(
        task_id="harvest", postgres_conn_id="flights_db", kafka_conn_id="kafka_default", until="forever"
    )
