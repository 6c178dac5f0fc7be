"""`airflow-outbox status · pause · resume · handover · pump`: operate a running outbox."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.cli.tickets import show_ticket
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.load import LoadPlan, pump
from airflow_outbox.operate.parked_requests import ParkedCounts
from airflow_outbox.operate.status import OutboxStatus, ShardStatus, ask_handover, ask_pause, read_status
from airflow_outbox.values.terminal import as_json, escaped

_HANDOVER_PATIENCE = 30.0
_WIDTH_IN_FILES = 250
_LONG = 10.0  # seconds that a transaction is open


@click.command()
@config_file
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--ticket", metavar="TICKET", help="Only say whether all of this ticket's transaction is published.")
def status(path: Path, output: str, ticket: str | None) -> None:
    """Show who leads, how much waits, how fast it goes, and what went wrong last."""
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            if ticket is not None:
                show_ticket(connection, config.name, ticket, output=output)
                return
            found = read_status(connection, config.name)
    if output == "json":
        click.echo(as_json(asdict(found)))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH_IN_FILES
        console.print(_table(found, config.limits.session_timeout))
        console.print(escaped(_dead_rows(found)), markup=False, highlight=False)
        if found.doubt is not None:
            console.print(escaped(f"nobody can tell what is published: {found.doubt}"), markup=False, highlight=False)


@click.command()
@config_file
def pause(path: Path) -> None:
    """Let the leaders mark nothing more. Records in flight are finished; stashing goes on."""
    _ask_pause(path, paused=True)


@click.command()
@config_file
def resume(path: Path) -> None:
    """End a pause."""
    _ask_pause(path, paused=False)


@click.command()
@config_file
@click.option("--shard", default=0, show_default=True)
def handover(path: Path, shard: int) -> None:
    """Let another member lead, and wait until one does."""
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            before = ask_handover(connection, config.name, shard=shard)
            if before.view is None:
                raise OutboxError(f"nobody has led shard {shard} yet. Start a harvester first")
            deadline = time.monotonic() + _HANDOVER_PATIENCE
            while time.monotonic() < deadline:
                now = read_status(connection, config.name).shards[shard]
                if now.view != before.view:
                    break
                time.sleep(0.1)
            else:
                raise OutboxError(
                    f"no other member has taken over shard {shard} from {before.member}. See `airflow-outbox status`"
                )
    if now.member == before.member:
        raise OutboxError(f"{now.member} leads again, because there is no other member. Start another harvester first")
    click.echo(f"{now.member} leads shard {shard} instead of {before.member}")


@click.command("pump")
@config_file
@click.option("--topic", required=True, help="The records' topic; it must exist.")
@click.option("--records", default=10_000, show_default=True, help="How many.")
@click.option("--rate", type=float, help="Records per second; by default, as many as possible.")
@click.option("--keys", default=1_000, show_default=True, help="The number of keys.")
@click.option("--size", default=100, show_default=True, help="Characters per value.")
@click.option("--transaction", default=10, show_default=True, help="Records per transaction.")
@click.option("--rollbacks", default=0.0, show_default=True, help="The share of transactions that are rolled back.")
def pump_command(path: Path, **load: object) -> None:
    """Generate load: stash records as an application would."""
    begun = time.monotonic()
    with clear_errors():
        wanted = LoadPlan(**load)  # type: ignore[arg-type]  # click gives what the options say
        committed = pump(HarvestConfig.from_yaml(path), wanted, report=lambda _: None)
    seconds = time.monotonic() - begun
    click.echo(f"{committed} records stashed in {seconds:.1f} s, {committed / seconds:.0f} records/s")


def _ask_pause(path: Path, *, paused: bool) -> None:
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            ask_pause(connection, config.name, paused=paused)
    click.echo("paused: leaders see it within a second" if paused else "resumed: leaders see it within a second")


def _table(status: OutboxStatus, session_timeout: float) -> Table:
    waiting = f"{status.backlog} records wait"
    if status.oldest_age is not None:
        waiting += f", the oldest for {_seconds(status.oldest_age)}"
    table = Table(
        title=_text(f"{status.outbox} ({status.outbox_id}, incarnation {status.incarnation}): {waiting}"),
        caption=_text(_parked(status.parked)),
    )
    for heading in ("shard", "leader", "since", "view", "in flight", "records/s", "published", "last error"):
        table.add_column(heading)
    for shard in status.shards:
        error = f"{shard.last_error_at:%Y-%m-%d %H:%M:%S} {shard.last_error}" if shard.last_error_at else ""
        since = f"{shard.took_over_at:%Y-%m-%d %H:%M:%S}" if shard.took_over_at else ""
        table.add_row(
            str(shard.shard),
            _text(_leader(shard, session_timeout)),
            since,
            str(shard.view or ""),
            str(shard.in_flight),
            f"{shard.rate:.0f}",
            str(shard.published),
            _text(error),
        )
    return table


def _text(text: str | None) -> Text | None:
    """Plain text without effect: nothing in it acts as markup or controls a terminal."""
    return None if text is None else Text(escaped(text))


def _dead_rows(status: OutboxStatus) -> str:
    """How many purged rows Postgres keeps and, if that takes long enough to matter, who makes it keep them."""
    said = f"Postgres still keeps about {status.dead_rows} purged rows"
    holder = status.oldest_holder
    if holder is None or (holder.age is not None and holder.age < _LONG):
        return said
    pid = f" with process id {holder.pid}" if holder.pid is not None else ""
    age = f", open for {_seconds(holder.age)}" if holder.age is not None else ""
    return f"{said}; it must keep the latest ones for the {holder.kind}{pid} ({holder.name}){age}"


def _leader(shard: ShardStatus, session_timeout: float) -> str:
    if shard.silent_for is None:
        return "nobody yet"
    if shard.silent_for < 0:
        return f"nobody; {shard.member} was last heard from before Postgres' clock was set back"
    if shard.silent_for > session_timeout:
        return f"nobody; {shard.member} was last heard from {_seconds(shard.silent_for)} ago"
    return f"{shard.member}{' (paused)' if shard.paused else ''}"


def _parked(counts: ParkedCounts) -> str | None:
    """The parked records in words; None when there are none."""
    if not counts.refused and not counts.waiting:
        return None
    causes = ", ".join(f"{count} {cause}" for cause, count in counts.refused.items()) or "none refused"
    text = f"parked: {causes}; {counts.waiting} wait behind them"
    if counts.transactions_refused is not None:
        text += f" (transactions: {counts.transactions_refused} with a refused record, {counts.transactions_held} held)"
    return text


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
