"""The choice of contenders: this project and the peers at hand; for each other one, why it does not take part."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from airflow_outbox.errors import OutboxError
from benchmarks.peers import connect, debezium, goharvest, verdicts
from benchmarks.peers.bare import BareLoop
from benchmarks.peers.contender import Contender
from benchmarks.peers.debezium import Debezium
from benchmarks.peers.goharvest import Goharvest
from benchmarks.peers.outbox import AirflowOutbox


@dataclass(frozen=True, slots=True)
class Absent:
    """A contender that is not measured."""

    name: str
    reason: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for where peers are, and which are left out."""
    parser.add_argument("--goharvest", type=Path, metavar="BIN", help="goharvest's reaper")
    parser.add_argument("--no-debezium", action="store_true", help="leave out Debezium, whose jars have to be fetched")


def ours() -> Iterator[Contender]:
    """This project, in both modes of delivery, with nothing else configured."""
    yield AirflowOutbox(verdicts.EXACTLY_ONCE)
    yield AirflowOutbox(verdicts.AT_LEAST_ONCE, {"delivery": "at_least_once"})


def for_a_backlog(given: argparse.Namespace) -> Iterator[Contender | Absent]:
    """The contenders for a full outbox, the peers as they are and with the settings that make them fastest."""
    yield from ours()
    if given.tuned is not None:
        yield AirflowOutbox(verdicts.TUNED, yaml.safe_load(given.tuned.read_text("utf-8")))
    if (reason := _missing(given.bare, "--bare PATH")) is None:
        yield BareLoop(verdicts.BARE_LOOP, given.bare, batch=given.bare_batch)
    else:
        yield Absent(verdicts.BARE_LOOP, reason)
    if (reason := _no_reaper(given)) is None:
        yield Goharvest(verdicts.GOHARVEST, given.goharvest)
        yield Goharvest(verdicts.GOHARVEST_BEST, given.goharvest, goharvest.BEST_LIMITS)
    else:
        yield Absent(verdicts.GOHARVEST, reason)
    if (reason := _no_debezium(given)) is None:
        yield Debezium(verdicts.DEBEZIUM)
        yield Debezium(verdicts.DEBEZIUM_TUNED, debezium.TUNED)
        yield Debezium(verdicts.DEBEZIUM_WARM, debezium.TUNED, is_warm=True)
        yield Debezium(verdicts.DEBEZIUM_EXACTLY_ONCE, debezium.TUNED | debezium.EXACTLY_ONCE, is_warm=True)
    else:
        yield Absent(verdicts.DEBEZIUM, reason)


def for_a_stream(given: argparse.Namespace) -> Iterator[Contender | Absent]:
    """The contenders for records as they come, the peers with the settings that make them soonest."""
    yield from ours()
    yield Absent(verdicts.BARE_LOOP, "it ends when the table is empty")
    if (reason := _no_reaper(given)) is None:
        yield Goharvest(verdicts.GOHARVEST, given.goharvest)
    else:
        yield Absent(verdicts.GOHARVEST, reason)
    if (reason := _no_debezium(given)) is None:
        yield Debezium(verdicts.DEBEZIUM, is_warm=True)
        soon = debezium.TUNED | debezium.SOON
        yield Debezium(verdicts.DEBEZIUM_TUNED, soon, is_warm=True)
        yield Debezium(verdicts.DEBEZIUM_EXACTLY_ONCE, soon | debezium.EXACTLY_ONCE, is_warm=True)
    else:
        yield Absent(verdicts.DEBEZIUM, reason)


def _no_reaper(given: argparse.Namespace) -> str | None:
    reason = _missing(given.goharvest, "--goharvest BIN")
    if reason is None and not os.access(given.goharvest, os.X_OK):
        reason = f"{given.goharvest} can't be executed"
    return reason


def _no_debezium(given: argparse.Namespace) -> str | None:
    if given.no_debezium:
        return "it was left out (--no-debezium)"
    try:
        connect.fetch()
    except OutboxError as error:
        return str(error)
    return None


def _missing(path: Path | None, option: str) -> str | None:
    """Why a file can't be used, None when it can."""
    if path is None:
        return f"it was not given ({option})"
    return None if path.is_file() else f"there is no file {path}"
