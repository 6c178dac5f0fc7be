"""`airflow-outbox adopt`: go on after a restore, a fail-over or a lost ledger; or as an outbox of its own."""

from __future__ import annotations

from collections.abc import Sequence

import click

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.options import clear_errors, configuration, on_behalf_of
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.adopt import adopt
from airflow_outbox.operate.adopt_copy import Copied, make_new_outbox


@click.command("adopt")
@configuration
@click.option("--reason", required=True, help="The reason, which is recorded.")
@click.option(
    "--nothing-lost",
    is_flag=True,
    help="The database holds all that it ever acknowledged, as after a planned switch-over: purge what the ledger says "
    "is published. Without this option, such records are published again.",
)
@click.option(
    "--as-new-outbox",
    is_flag=True,
    help="This database is a copy, and the original is still harvested: give the copy its own outbox id, and so its "
    "own ledger, group and transactional ids. Stop the copy's harvesters first.",
)
@click.option("--yes", is_flag=True, help="Accept without asking.")
@on_behalf_of
@as_text_or_json
def adopt_command(
    config: HarvestConfig,
    reason: str,
    nothing_lost: bool,
    as_new_outbox: bool,
    yes: bool,
    on_behalf_of: str | None,
    output: str,
) -> None:
    """Accept that database and ledger are not of one history, and let harvesting go on.

    Run it as the owner of the tables, who may write the sequence.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for those who read it later")
    if as_new_outbox and nothing_lost:
        raise click.UsageError("give either --nothing-lost or --as-new-outbox: a new outbox has no ledger yet")
    ask = _Asking(yes=yes, output=output)
    with clear_errors():
        if as_new_outbox:
            _become_new(config, ask, reason=reason, on_behalf_of=on_behalf_of)
        else:
            _adopt(config, ask, reason=reason, nothing_lost=nothing_lost, on_behalf_of=on_behalf_of)


class _Asking:
    """Shows what would be accepted, and asks; on stderr where stdout is for JSON."""

    def __init__(self, *, yes: bool, output: str) -> None:
        self.output = output
        self.shown: list[str] = []
        self._yes = yes

    def __call__(self, lines: Sequence[str], question: str, *, note: str | None = None) -> bool:
        self.shown = [*lines]
        is_json = self.output == "json"
        for line in lines:
            say(f"- {line}", err=is_json)
        if note is not None:
            say(note, err=is_json)
        return self._yes or click.confirm(question, err=is_json)


def _adopt(config: HarvestConfig, ask: _Asking, *, reason: str, nothing_lost: bool, on_behalf_of: str | None) -> None:
    def accept(differences: Sequence[str]) -> bool:
        return ask(
            differences,
            "Accept this, and count every record that is in the outbox now as unpublished?",
            note="If this database is a copy and the original is still harvested, don't accept: run "
            "`airflow-outbox adopt --as-new-outbox`.",
        )

    adoption = adopt(config, reason=reason, nothing_lost=nothing_lost, accept=accept, on_behalf_of=on_behalf_of)
    done = "nothing was adopted" if ask.shown else "there was nothing to adopt: database and ledger share one history"
    if adoption is not None:
        done = f"adopted as incarnation {adoption.incarnation}; harvesting continues within seconds"
    values = {"incarnation": None if adoption is None else adoption.incarnation, "differences": ask.shown}
    answer([done], {"adopted": adoption is not None, **values}, output=ask.output)


def _become_new(config: HarvestConfig, ask: _Asking, *, reason: str, on_behalf_of: str | None) -> None:
    def accept(found: Copied) -> bool:
        lines = [
            f"the outbox gets a new id in place of {found.outbox_id}, and refuses tickets of that outbox",
            f"{found.waiting} records wait in it, and {found.parked} are parked: all count as unpublished",
            f"they will be published to {found.brokers}, where the original may publish them, too. Before you start a "
            "harvester, delete those that must not be published twice",
            *(f"the configuration sets {name}: the original must use another one" for name in found.named),
        ]
        return ask(lines, "Make this database an outbox of its own?")

    done = make_new_outbox(config, reason=reason, accept=accept, on_behalf_of=on_behalf_of)
    if done is None:
        answer(["nothing was changed"], {"adopted": False, "outbox_id": None, "facts": ask.shown}, output=ask.output)
        return
    outbox_id, names = done
    text = (
        f"this is outbox {outbox_id} now. Run `airflow-outbox init`, which creates the topics "
        f"{names.leader_topic} and {names.ledger_topic}. Then start its harvesters"
    )
    answer([text], {"adopted": True, "outbox_id": outbox_id, "facts": ask.shown}, output=ask.output)
