"""`airflow-outbox`: all commands. Each group of them has a module of its own."""

from __future__ import annotations

import logging
from typing import NoReturn

import click

from airflow_outbox import __version__
from airflow_outbox.audit.cli import audit_command
from airflow_outbox.cli.adopt import adopt_command
from airflow_outbox.cli.audit import audit_with_bars
from airflow_outbox.cli.check import check_command, grant_command
from airflow_outbox.cli.clusters import clusters
from airflow_outbox.cli.debezium import debezium
from airflow_outbox.cli.groups import Commands
from airflow_outbox.cli.harvest import harvest_command
from airflow_outbox.cli.init import init_command, rename_command
from airflow_outbox.cli.operate import handover, pause, pump_command, reshard_command, resume
from airflow_outbox.cli.parked import parked
from airflow_outbox.cli.positions import positions
from airflow_outbox.cli.replay import replay_command
from airflow_outbox.cli.status import status
from airflow_outbox.cli.trail import trail
from airflow_outbox.harvest.leaving import leave_after


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-outbox")
def main() -> None:
    """Get events out of Postgres into Kafka: make, examine and harvest an outbox."""
    # Kafka's client logs what it tries; errors of ours say it once. `harvest` and `positions run` log it all the same.
    logging.getLogger("airflow_outbox").addHandler(logging.NullHandler())


def program() -> NoReturn:
    """`airflow-outbox` as a process, which ends with the command's status."""
    leave_after(main)


for command in (
    init_command,
    check_command,
    grant_command,
    harvest_command,
    status,
    pause,
    resume,
    handover,
    reshard_command,
    rename_command,
    clusters,
    positions,
    parked,
    trail,
    replay_command,
    pump_command,
    adopt_command,
    debezium,
    audit_command(audit_with_bars),
):
    main.add_command(command)
