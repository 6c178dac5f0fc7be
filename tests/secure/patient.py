"""A harvester whose questions to Kafka have ten minutes for their answer: what it says sooner does not come from a
time-out. To be run in place of the child, or with the arguments of the command in place of `airflow-outbox`.
"""

from __future__ import annotations

import sys

from airflow_outbox.cli import main as command
from airflow_outbox.harvest.__main__ import main as child
from airflow_outbox.harvest.kafka import admin

if __name__ == "__main__":
    admin._TIMEOUT = 600.0
    if len(sys.argv) > 1:
        command()
    else:
        child()
