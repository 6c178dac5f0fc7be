"""`python -m airflow_outbox.demo [--once] [--rows N]`, as `./dev demo` runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from airflow_outbox.demo.flights import ALL_FLIGHTS, JANUARY_FLIGHTS
from airflow_outbox.demo.run import DemoOptions, run
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.leaving import leave_after

_ROOT = Path(__file__).resolve().parents[2]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--once", is_flag=True, help="Check everything that arrives, stop all servers, and print the result as JSON."
)
@click.option(
    "--rows",
    type=click.IntRange(1, ALL_FLIGHTS),
    help=f"Use only this many flights, from the top of the file; by default January's {JANUARY_FLIGHTS}.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT / ".dev" / "demo",
    show_default=".dev/demo",
    help="The folder for the servers' data and logs. It is emptied at the start.",
)
@click.pass_context
def main(context: click.Context, *, once: bool, rows: int | None, folder: Path) -> None:
    """Real flights out of a Spark job, through Postgres and the harvester under Airflow, into Kafka.

    Starts Postgres, Kafka and Airflow, and runs until Ctrl-C.
    """
    options = DemoOptions(once=once, rows=rows, folder=folder, dags=_ROOT / "dags", jars=_ROOT / ".dev" / "jars")
    if not options.dags.is_dir():
        raise click.ClickException(f"there is no {options.dags}. Run the demo from a checkout of the project")
    try:
        context.exit(run(options))
    except OutboxError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    leave_after(partial(main, prog_name="./dev demo"))
