"""Stash records: write them into the outbox inside the caller's own transaction.

The records and the business rows become visible together, when the caller commits, or not at all. One statement
carries any number of records; the records of one call get ids in the order in which they were given.
"""

from __future__ import annotations

from airflow_outbox.stash.cloud_events import cloud_event
from airflow_outbox.stash.schema_registry import serialized_record
from airflow_outbox.stash.stashing import astash, stash

__all__ = ["astash", "cloud_event", "serialized_record", "stash"]
