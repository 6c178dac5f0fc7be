"""`airflow-outbox status`: how an outbox is doing, for people, scripts and probes. It opens with the verdict."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Event
from types import FrameType
from typing import NoReturn

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.history import show_history, step_for
from airflow_outbox.cli.options import clear_errors, configuration_of_many, database
from airflow_outbox.cli.status_of_many import show_many
from airflow_outbox.cli.status_words import COLOURS, leader, parked, plain, waiting
from airflow_outbox.cli.tables import WIDTH_IN_FILES, WIDTH_OF_TABLE
from airflow_outbox.cli.tickets import show_ticket
from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.settings_base import Duration
from airflow_outbox.operate.many import read_statuses
from airflow_outbox.operate.status import ClusterStatus, MemberStatus, OutboxStatus, ShardStatus, read_status
from airflow_outbox.postgres.health_history import DAY, read_history
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.values.judging import unknown
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.moments import moment
from airflow_outbox.values.positions import PositionsReport
from airflow_outbox.values.terminal import as_json, escaped
from airflow_outbox.values.verdict import Verdict, in_words, named

_LONG = 10.0  # seconds that a transaction is open
_FAILED = 3
_NOT_COUNTED = (
    "nobody can tell how long records wait: counting them takes too long. `airflow-outbox status` shows what Postgres "
    "keeps"
)


def _seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        raise click.BadParameter(f"{text!r}: give a duration such as 100ms, 2s or 5m", param=parameter) from None


@click.command()
@configuration_of_many
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--ticket", metavar="TICKET", help="Only say whether all of this ticket's transaction is published.")
@click.option(
    "--fail-if-older-than",
    "oldest",
    metavar="DURATION",
    callback=_seconds,
    help="End with status 3 if a record has waited for longer.",
)
@click.option("--fail-unless-leading", is_flag=True, help="End with status 3 unless somebody leads.")
@click.option(
    "--history",
    "past",
    metavar="DURATION",
    callback=_seconds,
    help="Show instead how it was doing for this long up to now, at most 24h.",
)
@click.option("--shard", type=click.IntRange(0, 63), help="With --history: only this shard's.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", default="2s", show_default=True, callback=_seconds, help="With --watch: how often.")
def status(
    config: HarvestConfig,
    output: str,
    ticket: str | None,
    oldest: float | None,
    fail_unless_leading: bool,
    past: float | None,
    shard: int | None,
    watch: bool,
    interval: float,
) -> None:
    """Show whether all is well, who leads, how much waits, how fast it goes, and what to do.

    A file may name many outboxes. Then there is a line for each; `--outbox` shows one.
    """
    if config.outboxes and (ticket is not None or past is not None or watch):
        raise click.UsageError("--ticket, --history and --watch are about one outbox. Say by --outbox which one")
    if past is not None and (ticket is not None or oldest is not None or fail_unless_leading or watch):
        raise click.UsageError("--history goes with no other options than --shard and --output")
    if shard is not None and past is None:
        raise click.UsageError("--shard goes with --history. All shards are shown without it")
    if ticket is not None and (oldest is not None or fail_unless_leading):
        raise click.UsageError("--ticket goes with no option --fail-…: it ends with a status of its own")
    if past is not None and past > DAY:
        raise click.UsageError("--history goes back 24h, and no further")
    if watch and (ticket is not None or oldest is not None or fail_unless_leading):
        raise click.UsageError("--watch goes with neither --ticket nor an option --fail-…: it does not end by itself")
    with clear_errors():
        if ticket is not None:
            with database(config) as connection:
                show_ticket(connection, config.name, ticket, output=output)
            return
        if past is not None:
            step = step_for(past, output=output)
            with database(config) as connection:
                shards = read_layout(connection, config.name).shards
                if shard is not None and shard >= shards:
                    raise ConfigurationError(f"{config.name} has no shard {shard}. Its shards are 0 to {shards - 1}")
                points = read_history(connection, config.name, seconds=past, step=step, shard=shard)
            show_history(points, step=step, output=output)
            return
        if watch:
            _watch(config, output=output, interval=interval)
        if config.outboxes:
            _show_list(config, output=output, oldest=oldest, unless_leading=fail_unless_leading)
            return
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
    ended = Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()  # for where the interrupt is not passed on, as in a callback of a client
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, end)
    with suppress(KeyboardInterrupt):
        while not ended.is_set():
            found = _read(config)
            if sys.stdout.isatty() and output == "table":
                click.clear()
            _show(found, config, output=output)
            sys.stdout.flush()
            ended.wait(interval)
    sys.exit(0)


def _show_list(config: HarvestConfig, *, output: str, oldest: float | None, unless_leading: bool) -> None:
    """Show all outboxes of a list, and end as for one of them: by any that fails."""
    found = read_statuses(config)
    show_many(found, config, output=output)
    reasons = []
    for name, each in found.items():
        if isinstance(each, OutboxStatus):
            why = _reasons(each, config, oldest=oldest, unless_leading=unless_leading)
            why += [_NOT_COUNTED] if oldest is not None and each.backlog is None else []
            reasons += [f"{name}: {reason}" for reason in why]
    unknown = any(isinstance(each, Verdict) for each in found.values())
    uncounted = oldest is not None and any(
        isinstance(each, OutboxStatus) and each.backlog is None for each in found.values()
    )
    _end(reasons, status=1 if unknown or uncounted else _FAILED)
    if unknown:
        sys.exit(1)


def _fail(found: OutboxStatus, config: HarvestConfig, *, oldest: float | None, unless_leading: bool) -> None:
    """End with a status that a probe understands, if it is to fail."""
    if oldest is not None and found.backlog is None:
        raise click.ClickException(_NOT_COUNTED)
    _end(_reasons(found, config, oldest=oldest, unless_leading=unless_leading))


def _reasons(found: OutboxStatus, config: HarvestConfig, *, oldest: float | None, unless_leading: bool) -> list[str]:
    reasons = []
    if oldest is not None and (found.oldest_age or 0) > oldest:
        reasons.append(f"the oldest record has waited for {in_words(found.oldest_age or 0)}")
    silent = [shard.shard for shard in found.shards if not shard.leads(config.limits.session_timeout)]
    if silent and (unless_leading or found.backlog != 0):
        whom = "nobody leads" if len(found.shards) == 1 else f"nobody leads {named(silent)}"
        reasons.append(whom if found.backlog == 0 else f"{whom}; {waiting(found)}")
    return reasons


def _end(reasons: Sequence[str], *, status: int = _FAILED) -> None:
    for reason in reasons:
        click.echo(f"fails: {reason}", err=True)
    if reasons:
        sys.exit(status)


def _show(found: OutboxStatus | Verdict, config: HarvestConfig, *, output: str) -> None:
    if output == "json":
        only_verdict = isinstance(found, Verdict)
        whole = {"outbox": str(config.name), "verdict": asdict(found)} if only_verdict else asdict(found)
        click.echo(as_json(whole))
        return
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_IN_FILES
    show(found, console, session_timeout=config.limits.session_timeout)
    if isinstance(found, OutboxStatus) and found.members:
        console.print(plain(f"members: {'; '.join(_member(each) for each in found.members)}"))
    for cluster in found.clusters if isinstance(found, OutboxStatus) else ():
        console.print(plain(_cluster(cluster)))
    if isinstance(found, OutboxStatus) and found.positions is not None:
        console.print(plain(_positions(found.positions)))
    if isinstance(found, OutboxStatus) and (line := _layout(found.layout, config)) is not None:
        console.print(plain(line))


def _member(member: MemberStatus) -> str:
    if member.standing == "silent":
        return f"{member.member} was last heard from {in_words(max(0.0, member.silent_for))} ago"
    return f"{member.member} {member.standing}"


def _cluster(cluster: ClusterStatus) -> str:
    text = f"cluster {cluster.name}: {cluster.part}"
    if cluster.since is not None:
        text += f" since {moment(cluster.since)}"
    if cluster.reason is not None:
        text += f" ({cluster.reason})"
    if cluster.behind:
        text += f", {cluster.behind} batches behind"
    if cluster.owed_since is not None:
        text += f", the oldest of {moment(cluster.owed_since)}"
    if cluster.is_wanted:
        text += "; it is to be attached"
    if cluster.error is not None and cluster.held_since is not None:
        text += f"; everything waits for it since {moment(cluster.held_since)}: {cluster.error}"
    return text


def _positions(report: PositionsReport) -> str:
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(report.groups.items()))
    silent = max(0.0, (datetime.now(UTC) - report.told_at).total_seconds())
    failures = f", {report.failures} failures" if report.failures else ""
    return f"positions: groups: {counts or 'none'}{failures}; {report.member} said so {in_words(silent)} ago"


def _layout(layout: Layout, config: HarvestConfig) -> str | None:
    """Return how many shards there are, and are to be; None where there is one, and nobody wants more."""
    if layout.wanted is not None:
        return f"shards: {layout.shards}, and {layout.wanted} are asked for: the leader of shard 0 sees to that"
    if "shards" in config.model_fields_set and config.shards != layout.shards:
        return (
            f"shards: {layout.shards}, whatever the configuration says. `airflow-outbox reshard {config.shards}` gives "
            f"the outbox {config.shards}"
        )
    return f"shards: {layout.shards}, layout {layout.number}" if layout.shards > 1 else None


def show(found: OutboxStatus | Verdict, console: Console, *, session_timeout: float) -> None:
    """Print the verdict, and below it the status: as a table, or where that is too wide one fact a line."""
    for line in _verdict_lines(found if isinstance(found, Verdict) else found.verdict):
        console.print(line)
    if isinstance(found, Verdict):
        return
    if console.width >= WIDTH_OF_TABLE:
        console.print(_table(found, session_timeout))
        console.print(plain(_dead_rows(found)))
    else:
        for name, fact in _facts(found, session_timeout):
            console.print(Text.assemble((f"{name}: ", "bold"), escaped(fact)))


def _verdict_lines(verdict: Verdict) -> Iterator[Text]:
    yield Text.assemble(
        (verdict.state.words, f"bold {COLOURS[verdict.state]}"), f"{_since(verdict)}: {escaped(verdict.cause)}"
    )
    if verdict.remedy:
        yield Text.assemble(("to do: ", "bold"), escaped(verdict.remedy))
    for note in verdict.notes:
        yield Text.assemble(("note: ", "bold"), escaped(note))


def _since(verdict: Verdict) -> str:
    if verdict.since is None:
        return ""
    seconds = (datetime.now(UTC) - verdict.since).total_seconds()
    return f" since {moment(verdict.since)} ({in_words(max(0.0, seconds))})"


def _facts(found: OutboxStatus, session_timeout: float) -> Iterator[tuple[str, str]]:
    """One fact a line, for narrow terminals."""
    yield "outbox", f"{found.outbox} ({found.outbox_id}, incarnation {found.incarnation})"
    yield "waiting", waiting(found)
    for shard in found.shards:
        yield f"shard {shard.shard}", leader(shard, session_timeout)
        if shard.took_over_at is not None:
            yield "  took over", f"{moment(shard.took_over_at)}, view {shard.view}"
        yield "  published", f"{shard.published}; now {shard.rate:.0f} records/s, {shard.in_flight} in flight"
        if len(found.shards) > 1:
            yield "  verdict", _own_verdict(shard)
            yield "  waiting", _own_backlog(shard)
        if shard.last_error is not None:
            yield "  last error", _last_error(shard)
    if (set_aside := parked(found.parked)) is not None:
        yield "parked", set_aside
    yield "dead rows", _dead_rows(found)


def _table(found: OutboxStatus, session_timeout: float) -> Table:
    table = Table(
        title=plain(f"{found.outbox} ({found.outbox_id}, incarnation {found.incarnation}): {waiting(found)}"),
        caption=plain(set_aside) if (set_aside := parked(found.parked)) is not None else None,
    )
    several = len(found.shards) > 1
    own = ("verdict", "waiting") if several else ()
    for heading in ("shard", *own, "leader", "since", "view", "in flight", "records/s", "published", "last error"):
        table.add_column(heading)
    for shard in found.shards:
        table.add_row(
            str(shard.shard),
            *([_own_verdict(shard), _own_backlog(shard)] if several else []),
            plain(leader(shard, session_timeout)),
            moment(shard.took_over_at) if shard.took_over_at else "",
            str(shard.view or ""),
            str(shard.in_flight),
            f"{shard.rate:.0f}",
            str(shard.published),
            plain(_last_error(shard)),
        )
    return table


def _own_verdict(shard: ShardStatus) -> str:
    return shard.verdict.state.words if shard.verdict else ""


def _own_backlog(shard: ShardStatus) -> str:
    if shard.backlog is None:
        return "not counted"
    refused = f", {shard.refused} parked" if shard.refused else ""
    age = f", for {in_words(shard.backlog.oldest_age)}" if shard.backlog.oldest_age is not None else ""
    return f"{shard.backlog}{age}{refused}"


def _last_error(shard: ShardStatus) -> str:
    return f"{moment(shard.last_error_at)} {shard.last_error}" if shard.last_error_at else ""


def _dead_rows(found: OutboxStatus) -> str:
    """How many purged rows Postgres keeps and, if that takes long enough to matter, who makes it keep them."""
    said = f"Postgres still keeps about {found.dead_rows} purged rows"
    holder = found.oldest_holder
    if holder is None or (holder.age is not None and holder.age < _LONG):
        return said
    pid = f" with process id {holder.pid}" if holder.pid is not None else ""
    age = f", open for {in_words(holder.age)}" if holder.age is not None else ""
    return f"{said}; it must keep the latest ones for the {holder.kind}{pid} ({holder.name}){age}"
