"""The statements that Postgres has run in one database, by its log, each with the rows it returned."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from operator import attrgetter
from pathlib import Path

import psycopg
from psycopg import sql

from airflow_outbox.sql import statements

_BEGINNING = re.compile(
    r"^(\S+ \S+) UTC \[(\d+)\] (?:LOG|DETAIL|ERROR|HINT|CONTEXT|STATEMENT|WARNING|FATAL):  ",
    re.MULTILINE,
)
_STATEMENT = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_FILLED_IN = re.compile(r"\{\w+\}|%\(\w+\)s")
_PLAN = re.compile(r"duration: \S+ ms  plan:\s+(\{.*\})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that a backend has run, and when it began; `rows` is what it returned, None where Postgres makes no
    plan.
    """

    backend: int
    began: datetime
    text: str
    rows: int | None = None

    @property
    def name(self) -> str | None:
        """Its name in the SQL files of a running harvester; None for any other."""
        return next((name for name, pattern in _queries().items() if pattern.fullmatch(self.text.strip())), None)


@cache
def _queries() -> dict[str, re.Pattern[str]]:
    return {
        name: re.compile(".*?".join(map(re.escape, _FILLED_IN.split(text))), re.DOTALL)
        for file in ("connection", "fence", "windows", "marks", "health_history")
        for name, text in statements(file).items()
    }


class StatementLog:
    """The log from now on. Sessions that begin from now on are logged: every statement, and how many rows it returned,
    which the extension `auto_explain` tells.
    """

    def __init__(self, database: str, log: Path) -> None:
        self._log = log
        with psycopg.connect(database, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            for setting, value in {
                "log_statement": "all",
                "session_preload_libraries": "auto_explain",
                "auto_explain.log_min_duration": "0",
                "auto_explain.log_analyze": "on",
                "auto_explain.log_timing": "off",
                "auto_explain.log_format": "json",
            }.items():
                query = sql.SQL("ALTER DATABASE {} SET {} = {}")
                names = sql.SQL(".").join(map(sql.Identifier, setting.split(".")))
                connection.execute(query.format(name, names, value))
        self.start = self.end

    @property
    def end(self) -> int:
        """A place in the log: how long it is."""
        return self._log.stat().st_size

    def statements(self, backends: Collection[int], *, since: int, until: int | None = None) -> list[Statement]:
        """The statements of these backends between two places of the log, in order."""
        with self._log.open("rb") as log:
            log.seek(since)
            text = log.read(-1 if until is None else until - since).decode()
        return sorted(_statements(text, backends), key=attrgetter("began"))


def _statements(text: str, backends: Collection[int]) -> Iterator[Statement]:
    """A backend logs a statement when it begins, and its plan when it ends; a line that goes on begins with a tab."""
    begun: dict[int, Statement] = {}
    for moment, backend, message in _messages(text):
        if backend not in backends:
            continue
        if found := _STATEMENT.match(message):
            if backend in begun:
                yield begun.pop(backend)
            begun[backend] = Statement(backend, moment, found[1])
        elif (found := _PLAN.match(message)) and backend in begun:
            with suppress(json.JSONDecodeError):  # it is being written
                rows = round(json.loads(found[1])["Plan"]["Actual Rows"])
                yield replace(begun.pop(backend), rows=rows)
    yield from begun.values()


def _messages(text: str) -> Iterator[tuple[datetime, int, str]]:
    beginnings = list(_BEGINNING.finditer(text))
    ends = [beginning.start() for beginning in beginnings[1:]] + [len(text)]
    for beginning, end in zip(beginnings, ends, strict=True):
        yield datetime.fromisoformat(beginning[1]), int(beginning[2]), text[beginning.end() : end].replace("\n\t", "\n")
