"""Requests to the leaders by people who may act: the same as the commands', noted in the same trail.

A request has a connection and a thread of its own. One that means very many records goes on when the page no longer
waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from typing import Annotated, Any, Final, Literal

import psycopg
from fastapi import APIRouter, Body, Depends, HTTPException, Query, Request, status
from psycopg.conninfo import make_conninfo
from starlette.responses import Response

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.operate.overview import begin_session
from airflow_outbox.operate.parked_requests import Choice, Matched, ParkedRequests
from airflow_outbox.operate.status import Leader, ask_handover, ask_pause
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.ui import airflow
from airflow_outbox.ui.access import Asked, may_act
from airflow_outbox.ui.filtering import Filter, choice_confirmed, filter_acted_on
from airflow_outbox.ui.outboxes import OutboxKey
from airflow_outbox.ui.pages import pool
from airflow_outbox.ui.query_pool import PageQuery, Session
from airflow_outbox.ui.rendering import page

log = logging.getLogger(__name__)
router = APIRouter()
_AT_ONCE: Final = 4
_PATIENCE: Final = 3.0
_LONGEST: Final = 600.0
_CONNECT_SECONDS: Final = 2
LONGEST_REASON = 1_000
Kind = Literal["pause", "resume", "handover", "retry", "discard"]
Work = Callable[[psycopg.Connection[Any], OutboxName], Any]
Acting = Annotated[Asked, Depends(may_act)]
Wanted = Annotated[Filter, Depends(filter_acted_on)]
Chosen = Annotated[Choice, Depends(choice_confirmed)]
Reason = Annotated[str, Body(embed=True, min_length=1, max_length=LONGEST_REASON)]
UNDER_WAY = object()
"""A request is not done yet."""


class Requests:
    """Makes requests: one at a time for each outbox, so that a click that is repeated does nothing.

    `data_source` returns an Airflow connection as a libpq connection string; it may block, and raise OutboxError.
    """

    def __init__(self, data_source: Callable[[str], str]) -> None:
        self._data_source = data_source
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="outbox-request")
        self._lock = threading.Lock()
        self._busy: set[OutboxKey] = set()

    async def make(self, key: OutboxKey, work: Work, *, patience: float = _PATIENCE) -> Any:
        """Return what the work returns, UNDER_WAY if that takes longer than `patience` (seconds).

        Raises what it raises, and ConfigurationError while another one is under way.
        """
        with self._lock:
            if key in self._busy:
                raise ConfigurationError(f"another request for {key.name} is under way. Wait until it is in the trail")
            if len(self._busy) >= _AT_ONCE:
                raise ConfigurationError(f"{_AT_ONCE} other requests are under way. Try again in a moment")
            self._busy.add(key)
        future = asyncio.wrap_future(self._threads.submit(self._make, key, work))
        done, _ = await asyncio.wait([future], timeout=patience)
        if not done:
            future.add_done_callback(partial(_tell, key))
            return UNDER_WAY
        return future.result()

    def _make(self, key: OutboxKey, work: Work) -> Any:
        try:
            source = make_conninfo(self._data_source(key.conn_id), connect_timeout=_CONNECT_SECONDS)
            with closing(connect(source, purpose="request")) as connection:
                begin_session(connection, seconds=_LONGEST)
                return work(connection, located(connection, key.outbox))
        finally:
            with self._lock:
                self._busy.discard(key)


@cache
def requests() -> Requests:
    """Return what makes requests in this process."""
    return Requests(airflow.data_source)


@router.get("/ask")
async def ask(request: Request, asked: Acting, wanted: Wanted, what: Annotated[Kind, Query()]) -> Response:
    """Ask whether a request is meant: it says what it would do, and to how many records. Nothing is changed."""
    matched: Matched | None = None
    if what in ("retry", "discard"):
        subject = ("matched", asked.key.name, wanted)
        question = PageQuery(asked.key.conn_id, subject, partial(_count, asked, wanted), max_age=0)
        answer = await pool().ask(question)
        if answer.value is None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, answer.problem)
        matched = answer.value
    given = {"up_to": matched.up_to, "everything": wanted.is_empty or None} if matched else {}
    return page(
        request,
        "ask.html",
        asked=asked,
        what=what,
        matched=matched,
        wanted=wanted,
        query=wanted.query(asked, **given),
        longest=LONGEST_REASON,
    )


@router.post("/act/pause")
async def pause(request: Request, asked: Acting) -> Response:
    """Let leaders mark nothing more."""
    return await _pause(request, asked, paused=True)


@router.post("/act/resume")
async def resume(request: Request, asked: Acting) -> Response:
    """End a pause."""
    return await _pause(request, asked, paused=False)


@router.post("/act/handover")
async def handover(request: Request, asked: Acting) -> Response:
    """Ask the leaders of all shards to let other members lead."""
    name = asked.visitor.name

    def ask(connection: psycopg.Connection[Any], outbox: OutboxName) -> list[Leader]:
        shards = range(read_layout(connection, outbox).shards)
        return [ask_handover(connection, outbox, shard=shard, on_behalf_of=name) for shard in shards]

    done = await made(asked, ask)
    leaders = sorted({each.member for each in done if each.member is not None}) if isinstance(done, list) else None
    if leaders == []:
        return said(request, asked, "Nobody leads now, so nobody can hand over. The verdict says why.")
    who = leaders[0] if leaders and len(leaders) == 1 else "Each leader"
    text = f"{who} hands over within seconds, if another member stands by. If there is none, it leads again."
    return said(request, asked, text)


@router.post("/act/retry")
async def retry(request: Request, asked: Acting, choice: Chosen) -> Response:
    """Ask the leader to try parked records again."""
    name = asked.visitor.name
    count = await made(
        asked, lambda connection, outbox: ParkedRequests(connection, outbox).ask("retry", choice, on_behalf_of=name)
    )
    text = "The leader tries {} again within seconds. Those that Kafka takes are parked no more."
    return _said_of_records(request, asked, text, count)


@router.post("/act/discard")
async def discard(request: Request, asked: Acting, choice: Chosen, reason: Reason) -> Response:
    """Ask the leader to give parked records up."""
    name = asked.visitor.name
    if not reason.strip():
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "Say why: the reason stays with the records.")
    count = await made(
        asked,
        lambda connection, outbox: ParkedRequests(connection, outbox).ask(
            "discard", choice, reason=reason, on_behalf_of=name
        ),
    )
    return _said_of_records(request, asked, "The leader discards {} within seconds.", count)


async def _pause(request: Request, asked: Asked, *, paused: bool) -> Response:
    name = asked.visitor.name
    await made(asked, lambda connection, outbox: ask_pause(connection, outbox, paused=paused, on_behalf_of=name))
    if paused:
        return said(request, asked, "Leaders mark nothing more within a second. Stashing goes on. Resume it later.")
    return said(request, asked, "Leaders go on within a second.")


async def made(asked: Asked, work: Work, *, patience: float = _PATIENCE) -> Any:
    """Make a request, and return what it returns, UNDER_WAY if that takes longer than `patience` (seconds). An error
    becomes an answer that says what to do.
    """
    try:
        return await requests().make(asked.key, work, patience=patience)
    except ConfigurationError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{error}.") from error
    except OutboxError as error:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, f"{error}.") from error


def _count(asked: Asked, wanted: Filter, session: Session) -> Matched:
    return ParkedRequests(session.connection, session.shape(asked.key.outbox).name).matched(wanted.choice())


def _said_of_records(request: Request, asked: Asked, text: str, count: Any) -> Response:
    if count is UNDER_WAY:
        text = "There are very many records, so this takes a while. The trail shows how far it is."
        return said(request, asked, text)
    if not count:
        return said(request, asked, "No waiting record matches any more. Nothing was asked for.")
    return said(request, asked, text.format("1 record" if count == 1 else f"{count:,} records"))


def said(request: Request, asked: Asked, text: str) -> Response:
    """Return the answer to a request."""
    return page(request, "done.html", asked=asked, text=text)


def _tell(key: OutboxKey, future: asyncio.Future[Any]) -> None:
    if (error := future.exception()) is not None:
        log.error("a request for %s has failed after its page was left: %s. Ask again", key, error)
