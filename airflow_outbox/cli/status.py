"""`airflow-outbox status`: how an outbox is doing, for people, scripts and probes. It opens with the verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.cli.tickets import show_ticket
from airflow_outbox.errors import PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.settings import Duration
from airflow_outbox.operate.parked_requests import ParkedCounts
from airflow_outbox.operate.status import OutboxStatus, ShardStatus, read_status
from airflow_outbox.values.terminal import as_json, escaped
from airflow_outbox.values.verdict import State, Verdict, in_words, unknown

_WIDTH_IN_FILES = 250
_WIDTH_OF_TABLE = 120
_LONG = 10.0  # seconds that a transaction is open
_FAILED = 3
_COLOURS = {
    State.HEALTHY: "green",
    State.LAGGING: "yellow",
    State.PAUSED: "cyan",
    State.HELD: "yellow",
    State.STALLED: "red",
    State.HALTED: "red",
    State.NO_LEADER: "red",
    State.UNKNOWN: "magenta",
}


def _seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        raise click.BadParameter(f"{text!r}: give a duration such as 100ms, 2s or 5m", param=parameter) from None


@click.command()
@config_file
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--ticket", metavar="TICKET", help="Only say whether all of this ticket's transaction is published.")
@click.option(
    "--fail-if-older-than",
    "oldest",
    metavar="DURATION",
    callback=_seconds,
    help="Status 3 if a record waits for longer.",
)
@click.option("--fail-unless-leading", is_flag=True, help="Status 3 unless somebody leads.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", default="2s", show_default=True, callback=_seconds, help="With --watch: how often.")
def status(
    path: Path,
    output: str,
    ticket: str | None,
    oldest: float | None,
    fail_unless_leading: bool,
    watch: bool,
    interval: float,
) -> None:
    """Show whether all is well, who leads, how much waits, how fast it goes, and what to do."""
    if watch and (ticket is not None or oldest is not None or fail_unless_leading):
        raise click.UsageError("--watch goes with neither --ticket nor --fail-…: it does not end by itself")
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        if ticket is not None:
            with database(config) as connection:
                show_ticket(connection, config.name, ticket, output=output)
            return
        if watch:
            _watch(config, output=output, interval=interval)
        found = _read(config)
        _show(found, config, output=output)
    if isinstance(found, Verdict):
        sys.exit(1)
    _fail(found, config, oldest=oldest, unless_leading=fail_unless_leading)


def _read(config: HarvestConfig) -> OutboxStatus | Verdict:
    """The status, or without an answer of Postgres only the verdict."""
    try:
        with database(config) as connection:
            return read_status(connection, config.name, thresholds=config.thresholds)
    except PostgresError as error:
        return unknown(str(error))


def _watch(config: HarvestConfig, *, output: str, interval: float) -> NoReturn:
    with suppress(KeyboardInterrupt):
        while True:
            found = _read(config)
            if sys.stdout.isatty() and output == "table":
                click.clear()
            _show(found, config, output=output)
            sys.stdout.flush()
            time.sleep(interval)
    sys.exit(0)


def _fail(found: OutboxStatus, config: HarvestConfig, *, oldest: float | None, unless_leading: bool) -> None:
    """End with a status that a probe understands, if it is to fail."""
    reasons = []
    if oldest is not None and found.backlog is None:
        raise click.ClickException("nobody can tell how long records wait: counting them takes too long")
    if oldest is not None and (found.oldest_age or 0) > oldest:
        reasons.append(f"the oldest record has waited for {in_words(found.oldest_age or 0)}")
    if unless_leading and not all(shard.leads(config.limits.session_timeout) for shard in found.shards):
        reasons.append("nobody leads")
    for reason in reasons:
        click.echo(f"fails: {reason}", err=True)
    if reasons:
        sys.exit(_FAILED)


def _show(found: OutboxStatus | Verdict, config: HarvestConfig, *, output: str) -> None:
    if output == "json":
        only_verdict = isinstance(found, Verdict)
        whole = {"outbox": str(config.name), "verdict": asdict(found)} if only_verdict else asdict(found)
        click.echo(as_json(whole))
        return
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_IN_FILES
    show(found, console, session_timeout=config.limits.session_timeout)


def show(found: OutboxStatus | Verdict, console: Console, *, session_timeout: float) -> None:
    """Print the verdict, and below it the status: as a table, or where that is too wide one fact a line."""
    for line in _verdict_lines(found if isinstance(found, Verdict) else found.verdict):
        console.print(line)
    if isinstance(found, Verdict):
        return
    if console.width >= _WIDTH_OF_TABLE:
        console.print(_table(found, session_timeout))
        console.print(_plain(_dead_rows(found)))
    else:
        for name, fact in _facts(found, session_timeout):
            console.print(Text.assemble((f"{name}: ", "bold"), escaped(fact)))


def _verdict_lines(verdict: Verdict) -> Iterator[Text]:
    yield Text.assemble(
        (verdict.state.words, f"bold {_COLOURS[verdict.state]}"), f"{_since(verdict)}: {escaped(verdict.cause)}"
    )
    if verdict.remedy:
        yield Text.assemble(("to do: ", "bold"), escaped(verdict.remedy))
    for note in verdict.notes:
        yield Text.assemble(("note: ", "bold"), escaped(note))


def _since(verdict: Verdict) -> str:
    if verdict.since is None:
        return ""
    seconds = (datetime.now(UTC) - verdict.since).total_seconds()
    return f" since {verdict.since:%Y-%m-%d %H:%M:%S} ({in_words(max(0.0, seconds))})"


def _facts(found: OutboxStatus, session_timeout: float) -> Iterator[tuple[str, str]]:
    """One fact a line, for narrow terminals."""
    yield "outbox", f"{found.outbox} ({found.outbox_id}, incarnation {found.incarnation})"
    yield "waiting", _waiting(found)
    for shard in found.shards:
        yield f"shard {shard.shard}", _leader(shard, session_timeout)
        if shard.took_over_at is not None:
            yield "  took over", f"{shard.took_over_at:%Y-%m-%d %H:%M:%S}, view {shard.view}"
        yield "  published", f"{shard.published}; now {shard.rate:.0f} records/s, {shard.in_flight} in flight"
        if shard.last_error is not None:
            yield "  last error", _last_error(shard)
    if (parked := _parked(found.parked)) is not None:
        yield "parked", parked
    yield "dead rows", _dead_rows(found)


def _table(found: OutboxStatus, session_timeout: float) -> Table:
    table = Table(
        title=_plain(f"{found.outbox} ({found.outbox_id}, incarnation {found.incarnation}): {_waiting(found)}"),
        caption=_plain(parked) if (parked := _parked(found.parked)) is not None else None,
    )
    for heading in ("shard", "leader", "since", "view", "in flight", "records/s", "published", "last error"):
        table.add_column(heading)
    for shard in found.shards:
        table.add_row(
            str(shard.shard),
            _plain(_leader(shard, session_timeout)),
            f"{shard.took_over_at:%Y-%m-%d %H:%M:%S}" if shard.took_over_at else "",
            str(shard.view or ""),
            str(shard.in_flight),
            f"{shard.rate:.0f}",
            str(shard.published),
            _plain(_last_error(shard)),
        )
    return table


def _plain(text: str) -> Text:
    """Plain text without effect: nothing in it acts as markup or controls a terminal."""
    return Text(escaped(text))


def _waiting(found: OutboxStatus) -> str:
    if found.backlog is None:
        return "counting what waits takes too long, for dead rows"
    text = f"{'' if found.backlog_is_exact else 'more than '}{found.backlog} records wait"
    return text if found.oldest_age is None else f"{text}, the oldest for {in_words(found.oldest_age)}"


def _last_error(shard: ShardStatus) -> str:
    return f"{shard.last_error_at:%Y-%m-%d %H:%M:%S} {shard.last_error}" if shard.last_error_at else ""


def _dead_rows(found: OutboxStatus) -> str:
    """How many purged rows Postgres keeps and, if that takes long enough to matter, who makes it keep them."""
    said = f"Postgres still keeps about {found.dead_rows} purged rows"
    holder = found.oldest_holder
    if holder is None or (holder.age is not None and holder.age < _LONG):
        return said
    pid = f" with process id {holder.pid}" if holder.pid is not None else ""
    age = f", open for {in_words(holder.age)}" if holder.age is not None else ""
    return f"{said}; it must keep the latest ones for the {holder.kind}{pid} ({holder.name}){age}"


def _leader(shard: ShardStatus, session_timeout: float) -> str:
    if shard.silent_for is None:
        return "nobody yet"
    if shard.member is None:
        return "nobody"
    if shard.silent_for < 0:
        return f"nobody; {shard.member} was last heard from before Postgres' clock was set back"
    if shard.silent_for > session_timeout:
        return f"nobody; {shard.member} was last heard from {in_words(shard.silent_for)} ago"
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
