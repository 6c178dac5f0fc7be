"""The Dag `outbox_harvest`: once it is unpaused, all that is committed to the outbox is published to Kafka.

Pausing it starts no new run; to end the one that harvests, mark its task.
"""

from airflow.sdk import DAG

from airflow_outbox.sensors.harvest import OutboxHarvestSensor

with DAG("outbox_harvest", schedule="@continuous", max_active_runs=1, catchup=False, doc_md=__doc__):
    OutboxHarvestSensor(
        task_id="harvest", postgres_conn_id="flights_db", kafka_conn_id="kafka_default", until="forever"
    )
