"""`airflow-outbox status` of a list: a line for each outbox, those in trouble first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.status_words import COLOURS, leader, parked, plain, waiting
from airflow_outbox.cli.tables import WIDTH_IN_FILES, WIDTH_OF_TABLE
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.status import OutboxStatus
from airflow_outbox.values.terminal import as_json, escaped
from airflow_outbox.values.verdict import State, Verdict

Statuses = Mapping[str, OutboxStatus | Verdict]


def show_many(found: Statuses, config: HarvestConfig, *, output: str) -> None:
    """Print how the outboxes of a list are."""
    if output == "json":
        click.echo(as_json([_values(name, each) for name, each in found.items()]))
        return
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_IN_FILES
    print_many(found, console, session_timeout=config.limits.session_timeout)


def print_many(found: Statuses, console: Console, *, session_timeout: float) -> None:
    """Print how many outboxes are in which state, what to do, and each one's line."""
    states = Counter(_verdict(each).state.words for each in found.values())
    summary = ", ".join(f"{count} {words}" for words, count in sorted(states.items()))
    console.print(plain(f"{len(found)} outboxes: {summary}" if found else "the list means no outbox that is there"))
    for name, each in _troubled_first(found):
        verdict = _verdict(each)
        if verdict.state is not State.HEALTHY and verdict.remedy:
            console.print(Text.assemble(("to do: ", "bold"), escaped(f"{name}: {verdict.remedy}")))
    if console.width < WIDTH_OF_TABLE:
        for name, each in _troubled_first(found):
            console.print(plain("; ".join([name, *filter(None, _facts(each, session_timeout))])))
        return
    table = Table()
    for heading in ("outbox", "verdict", "waiting", "parked", "leader", "cause"):
        table.add_column(heading)
    for name, each in _troubled_first(found):
        state, *facts = _facts(each, session_timeout)
        table.add_row(plain(name), Text(state, style=COLOURS[_verdict(each).state]), *map(plain, facts))
    console.print(table)


def _values(name: str, found: OutboxStatus | Verdict) -> dict[str, object]:
    return {"outbox": name, "verdict": asdict(found)} if isinstance(found, Verdict) else asdict(found)


def _verdict(found: OutboxStatus | Verdict) -> Verdict:
    return found if isinstance(found, Verdict) else found.verdict


def _troubled_first(found: Statuses) -> Iterator[tuple[str, OutboxStatus | Verdict]]:
    yield from sorted(found.items(), key=lambda item: (_verdict(item[1]).state is State.HEALTHY, item[0]))


def _facts(found: OutboxStatus | Verdict, session_timeout: float) -> list[str]:
    """State, waiting records, parked ones, leader and cause, as far as they are known."""
    verdict = _verdict(found)
    if isinstance(found, Verdict):
        return [verdict.state.words, "", "", "", verdict.cause]
    who = ", ".join(leader(shard, session_timeout) for shard in found.shards)
    set_aside = (parked(found.parked) or "").removeprefix("parked: ")
    return [verdict.state.words, waiting(found), set_aside, who, verdict.cause]
