"""`./dev servers`: Postgres and Kafka at the addresses that the pages name, until Ctrl-C; what they hold is kept."""

from __future__ import annotations

import shlex
import signal
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

import click
import psycopg
from psycopg import sql

from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.leaving import leave_after

NAME = "app"
"""The database, the role that owns it, and its password: for a trial, where only this machine can connect."""
_ROOT = Path(__file__).resolve().parents[2]
_READY = """\
Postgres: host={host} port={postgres} dbname={name} user={name} password={name}
Kafka:    {host}:{kafka}

In another terminal:

    cd {root}
    export PATH="$PWD/.venv/bin:$PATH" PGPASSWORD={name}

Then go on with "2. Say where things are" of docs/first-steps.md. Ctrl-C ends both; {folder} keeps what they hold."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--postgres-port", type=click.IntRange(1, 65535), default=5432, show_default=True)
@click.option("--kafka-port", type=click.IntRange(1, 65535), default=9092, show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT / ".dev" / "servers",
    show_default=".dev/servers",
    help="The folder for the servers' data and logs.",
)
def main(*, postgres_port: int, kafka_port: int, folder: Path) -> None:
    """Start Postgres and Kafka for a trial, on this machine alone, until Ctrl-C."""
    for server, port, option in (
        ("Postgres", postgres_port, "--postgres-port"),
        ("Kafka", kafka_port, "--kafka-port"),
    ):
        if is_taken(port):
            raise click.ClickException(
                f"something listens at {LOOPBACK}:{port} already, so {server} can't. Use that server, stop it, or give "
                f"another {option}"
            )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        with ExitStack() as stack:
            click.echo("starting Postgres and Kafka (about 10 s)", err=True)
            folder.mkdir(parents=True, exist_ok=True)
            postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", port=postgres_port))
            make_database(postgres)
            jars = kafka_jars(_ROOT / ".dev" / "jars")
            stack.enter_context(EmbeddedKafka(folder / "kafka", classpath=jars, port=kafka_port))
            places = {"postgres": postgres_port, "kafka": kafka_port, "folder": folder, "root": shlex.quote(str(_ROOT))}
            click.echo(_READY.format(host=LOOPBACK, name=NAME, **places))
            while True:
                signal.pause()
    except _Stopped:
        click.echo("stopped", err=True)
    except OutboxError as error:
        raise click.ClickException(str(error)) from error


def is_taken(port: int) -> bool:
    """Return whether something listens at this port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def make_database(postgres: EmbeddedPostgres) -> None:
    """Make the role and its database, unless they are there."""
    name = sql.Identifier(NAME)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [NAME]).fetchone() is None:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(NAME)))
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [NAME]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))


class _Stopped(BaseException):
    """Somebody wants an end."""


def _stop(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # the servers end in their order now
    raise _Stopped


if __name__ == "__main__":
    leave_after(partial(main, prog_name="./dev servers"))
