"""The pages that show: all outboxes, one outbox, the tabs of a Dag and of a task; and their style, script and icons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from airflow_outbox.operate.details import HOUR, Details, Past, read_details, read_past
from airflow_outbox.operate.overview import Overview, read_overview
from airflow_outbox.postgres.health_history import DAY
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import find_outboxes
from airflow_outbox.ui import airflow
from airflow_outbox.ui.access import Asked, Visitor, finder, may_read, may_read_dag, signed_in
from airflow_outbox.ui.charts import Chart, chart
from airflow_outbox.ui.outboxes import Found, OutboxKey, Use
from airflow_outbox.ui.query_pool import Answer, PageQuery, QueryPool, Session
from airflow_outbox.ui.rendering import assets, page
from airflow_outbox.values.judging import unknown
from airflow_outbox.values.outbox_list import OutboxPattern
from airflow_outbox.values.verdict import BY_GRAVITY, State, Verdict

router = APIRouter()
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FORBIDDEN = 403
_NOT_FOUND = 404
_AGE = 1.0
"""Seconds for which an answer counts, for all who look."""
_OUTBOXES_A_CONNECTION = 50
"""Outboxes that share one connection, and"""
_MOST_CONNECTIONS = 4
"""how many connections there are at most behind one of Airflow's: Postgres plans each statement for a millisecond."""
_PATIENCE = 0.7
"""Seconds after which a list is shown, whoever has not answered by then."""
_PAST_AGE = 9.0
"""The same for charts: a point comes every ten."""
_MEANT_AGE = 30.0
"""The same for what patterns mean, as for what is found in Dags."""
_meant: dict[str, Sequence[OutboxKey]] = {}
"""The outboxes that patterns mean, by Airflow connection, as its database last told."""


@cache
def pool() -> QueryPool:
    """Return the connections of this process."""
    return QueryPool(airflow.data_source)


@dataclass(frozen=True, slots=True)
class ListedOutbox:
    """An outbox in a list. `overview` is None where its database has not answered."""

    key: OutboxKey
    verdict: Verdict
    overview: Overview | None

    @property
    def leader(self) -> str | None:
        """The member that leads, or how many lead its shards; None if a shard has no leader."""
        facts = self.overview.facts if self.overview else None
        if facts is None or not facts.leads(facts.thresholds):
            return None
        leaders = {each.member for each in facts.each}
        return facts.member if len(leaders) == 1 else f"{len(leaders)} members, {len(facts.shards)} shards"

    @property
    def rate(self) -> float:
        """How many records a second are published now, by shards that somebody leads."""
        facts = self.overview.facts if self.overview else None
        return facts.rate_now(facts.thresholds) if facts else 0.0

    @property
    def highest_rate(self) -> float:
        return max((rate for rate in self.overview.rates if rate is not None), default=0.0) if self.overview else 0.0


@router.get("/")
async def all_outboxes(request: Request, visitor: Annotated[Visitor, Depends(signed_in)]) -> Response:
    """All outboxes that the visitor may read."""
    found, problems = await all_found()
    keys, sees_all = await run_in_threadpool(_readable, visitor, found)
    rows = await rows_of(keys)
    troubled = sum(row.verdict.state is not State.HEALTHY for row in rows)
    problems = problems if sees_all else ()
    return page(request, "all.html", rows=rows, troubled=troubled, problems=problems)


@router.get("/one")
async def one_outbox(request: Request, asked: Annotated[Asked, Depends(may_read)]) -> Response:
    """One outbox."""
    key, name = asked.key, asked.key.outbox
    now, past = await pool().ask_all(
        [
            PageQuery(key.conn_id, ("details", key.name), partial(_ask_details, name), max_age=_AGE),
            PageQuery(key.conn_id, ("past", key.name), partial(_ask_past, name), max_age=_PAST_AGE),
        ]
    )
    details: Details | None = now.value
    verdict = details.overview.verdict if details else unknown(now.problem)
    clock = details.overview.facts.now if details else datetime.now(UTC)
    points = past.value.hour if past.value else ()
    return page(
        request,
        "one.html",
        asked=asked,
        details=details,
        verdict=verdict,
        since=(clock - verdict.since).total_seconds() if verdict.since else None,
        newest=points[-1] if points and details else None,
        past=_charts(past.value, clock) if past.value else None,
    )


@router.get("/dag")
async def dag_tab(request: Request, visitor: Annotated[Visitor, Depends(may_read_dag)], dag_id: str) -> Response:
    """The outboxes of a Dag."""
    found, _ = await all_found()
    return await _tab(request, "Dag", found.of_dag(dag_id))


@router.get("/task")
async def task_tab(
    request: Request, visitor: Annotated[Visitor, Depends(may_read_dag)], dag_id: str, task_id: str
) -> Response:
    """The outboxes of a task."""
    found, _ = await all_found()
    return await _tab(request, "task", [use for use in found.of_dag(dag_id) if use.task_id == task_id])


async def _tab(request: Request, what: str, uses: Sequence[Use]) -> Response:
    rows = await rows_of(dict.fromkeys(use.key for use in uses if use.key is not None))
    templated = [use for use in uses if use.key is None]
    return page(request, "tab.html", what=what, rows=rows, templated=templated)


@router.get("/asset/{file}", dependencies=[Depends(signed_in)])
async def asset(file: str) -> Response:
    """A file that pages refer to."""
    kind = _TYPES.get(PurePosixPath(file).suffix)
    if kind is None or (content := assets().get(file)) is None:
        raise HTTPException(_NOT_FOUND, "There is no such file.")
    kept = {"cache-control": "private, max-age=86400"}
    return Response(content, media_type=kind, headers=kept)


async def all_found() -> tuple[Found, Sequence[str]]:
    """Return all outboxes, also those that only patterns mean, and why some of these are not known. If a database
    is silent, its last answer counts.
    """
    found = await run_in_threadpool(finder.find)
    patterns = found.patterns()
    queries = [
        PageQuery(conn_id, ("meant", tuple(some)), partial(_ask_meant, conn_id, some), max_age=_MEANT_AGE)
        for conn_id, some in patterns.items()
    ]
    answers: list[Answer[Any]] = await pool().ask_all(queries, patience=_PATIENCE)
    told = dict(zip(patterns, answers, strict=True))
    _meant.update({conn_id: answer.value for conn_id, answer in told.items() if answer.value is not None})
    problems = [answer.problem for conn_id, answer in told.items() if conn_id not in _meant]
    return found.also(key for conn_id in patterns for key in _meant.get(conn_id, ())), problems


def _readable(visitor: Visitor, found: Found) -> tuple[list[OutboxKey], bool]:
    """The outboxes that a visitor may read, and whether he may read all (403 where he may read none)."""
    if visitor.sees_plugins():
        return list(found.outboxes), True
    keys = [key for key in found.outboxes if visitor.may_read(found, key)]
    if not keys:
        problem = "You may see no outbox: you need a Dag that uses one, or the right to see plugins."
        raise HTTPException(_FORBIDDEN, problem)
    return keys, False


async def rows_of(keys: Iterable[OutboxKey]) -> list[ListedOutbox]:
    """Return a row for each outbox, the gravest first: each is asked by one statement, for all who look."""
    wanted = list(keys)
    behind: Counter[str] = Counter()
    queries = []
    for key in wanted:
        connection = min(behind[key.conn_id] // _OUTBOXES_A_CONNECTION, _MOST_CONNECTIONS - 1)
        behind[key.conn_id] += 1
        ask = partial(_ask_overview, key.outbox)
        queries.append(PageQuery(key.conn_id, ("overview", key.name), ask, max_age=_AGE, connection=connection))
    answers: list[Answer[Any]] = await pool().ask_all(queries, patience=_PATIENCE)
    rows = [
        ListedOutbox(key, answer.value.verdict if answer.value else unknown(answer.problem), answer.value)
        for key, answer in zip(wanted, answers, strict=True)
    ]
    return sorted(rows, key=lambda row: (BY_GRAVITY.index(row.verdict.state), row.key.name, row.key.conn_id))


def _ask_meant(conn_id: str, patterns: Sequence[OutboxPattern], session: Session) -> list[OutboxKey]:
    """The outboxes that the patterns mean, each named as its pattern is, with a schema or without."""
    return [
        OutboxKey.of(conn_id, str(OutboxName(None, found.name.table) if pattern.schema is None else found.name))
        for pattern in patterns
        for found in find_outboxes(session.connection, [pattern])[0]
    ]


def _ask_overview(name: OutboxName, session: Session) -> Overview:
    return read_overview(session.connection, session.shape(name))


def _ask_details(name: OutboxName, session: Session) -> Details:
    return read_details(session.connection, session.shape(name))


def _ask_past(name: OutboxName, session: Session) -> Past:
    return read_past(session.connection, session.shape(name))


@dataclass(frozen=True, slots=True)
class Charts:
    """The drawings of an outbox's past."""

    hour: Chart
    day: Chart


def _charts(past: Past, now: datetime) -> Charts:
    return Charts(
        hour=chart("Last hour", past.hour, now=now, seconds=HOUR, step=10, row=300),
        day=chart("Last day", past.day, now=now, seconds=DAY, step=300, row=3600),
    )
