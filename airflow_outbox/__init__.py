"""airflow-outbox: events out of Postgres into Kafka, run, seen and awaited in Apache Airflow, fed by Spark."""

from __future__ import annotations

from airflow_outbox.stash import astash, cloud_event, serialized_record, stash
from airflow_outbox.tickets.published import published
from airflow_outbox.values.records import OutboxRecord, Ticket

__all__ = ["OutboxRecord", "Ticket", "__version__", "astash", "cloud_event", "published", "serialized_record", "stash"]

__version__ = "0.1.0"
