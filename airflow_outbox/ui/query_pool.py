"""Asks the outboxes' databases in threads of its own, so that a silent one delays no other, nor Airflow's API.

There is one connection for each Airflow connection, or a few where very many outboxes share that. Its questions are
asked one after another, each once for all who look. An answer counts for a second or two. A database that can't be
reached is asked behind: whoever looks learns at once that it does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_outbox.errors import OutboxError, PostgresUnreachableError
from airflow_outbox.operate.overview import Shape, begin_session, find_shape
from airflow_outbox.postgres.connection import OutboxConnection, connect
from airflow_outbox.postgres.names import OutboxName

T = TypeVar("T")
log = logging.getLogger(__name__)

THREADS: Final = 8
_FOR_THE_LOST = 2  # of these threads: they open connections that failed before
_STATEMENT_SECONDS = 2.0
_CONNECT_SECONDS = 2
_PATIENCE_WITH_A_QUESTION = 5.0
"""Seconds after which a connection is cut off: its server would have ended the statements, so it is silent."""
_RETRY = 3.0
"""Seconds before a lost database is tried again."""
_IDLE = 300.0
_KEPT = 60.0
_GLANCE = 0.2
_IN_A_ROW = 50
"""Questions that a connection may ask before its thread looks after others."""


class Session:
    """A connection, and what is known of its outboxes."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._shapes: dict[OutboxName, Shape] = {}

    def shape(self, name: OutboxName) -> Shape:
        """Raises PostgresError."""
        if name not in self._shapes:
            self._shapes[name] = find_shape(self.connection, name)
        return self._shapes[name]

    def forget(self) -> None:
        """After an error: a table may be another one now."""
        self._shapes.clear()


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A database's answer, or why there is none."""

    value: T | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PageQuery(Generic[T]):
    """A question to ask behind an Airflow connection. Two with the same `conn_id` and `subject` are the same question.

    An answer that is up to `max_age` seconds old will do. Each `connection` is one of several behind a `conn_id`.
    """

    conn_id: str
    subject: Hashable
    ask: Callable[[Session], T]
    max_age: float
    connection: int = 0

    @property
    def connection_key(self) -> tuple[str, int]:
        return self.conn_id, self.connection


@dataclass(slots=True)
class _Question:
    query: PageQuery[Any]
    answer: Answer[Any] | None = None
    answered_at: float = 0.0
    pending: Future[Answer[Any]] | None = None


@dataclass(slots=True)
class _ConnectionQueue:
    """One connection, and the questions that wait for it. `cut_at` is when what it does now has taken too long."""

    conn_id: str
    session: Session | None = None
    opening: psycopg.Connection[Any] | None = None
    waiting: deque[Callable[[Session | None], None]] = field(default_factory=deque)
    busy: bool = False
    problem: str = ""
    failed_at: float = 0.0
    cut_at: float | None = None
    was_cut: bool = False
    used_at: float = 0.0


class QueryPool:
    """`data_source` returns an Airflow connection as a libpq connection string; it may block, and raise OutboxError."""

    def __init__(self, data_source: Callable[[str], str]) -> None:
        self._data_source = data_source
        self._queues: dict[tuple[str, int], _ConnectionQueue] = {}
        self._questions: dict[tuple[str, Hashable], _Question] = {}
        self._lock = threading.Condition()
        self._threads = ThreadPoolExecutor(THREADS - _FOR_THE_LOST, thread_name_prefix="outbox-page")
        self._for_the_lost = ThreadPoolExecutor(_FOR_THE_LOST, thread_name_prefix="outbox-page-lost")
        self._watching: threading.Thread | None = None
        self._closed = False

    async def ask(self, query: PageQuery[T], *, patience: float = 1.0) -> Answer[T]:
        """Return the answer to one question, as `ask_all`."""
        return (await self.ask_all([query], patience=patience))[0]

    async def ask_all(self, queries: Sequence[PageQuery[Any]], *, patience: float = 1.0) -> list[Answer[Any]]:
        """Return an answer to each, within `patience` seconds: a problem where there is none by then."""
        with self._lock:
            questions = [self._asked(query) for query in queries]
            waited_for = {
                question.pending
                for question in questions
                if question.pending is not None and not self._queues[question.query.connection_key].problem
            }
        if waited_for:
            await asyncio.wait([asyncio.wrap_future(each) for each in waited_for], timeout=patience)
        with self._lock:
            return [self._newest(question, patience) for question in questions]

    def close(self) -> None:
        """End all connections and threads."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                _cut(queue)
            self._lock.notify_all()
        self._threads.shutdown(cancel_futures=True)
        self._for_the_lost.shutdown(cancel_futures=True)
        for queue in self._queues.values():
            self._end(queue)

    def _asked(self, query: PageQuery[Any]) -> _Question:
        """The question, which is asked now unless its answer is fresh, or nobody could answer a moment ago."""
        now = time.monotonic()
        question = self._questions.get((query.conn_id, query.subject))
        if question is None:
            self._forget_old_questions(now)
            question = self._questions[query.conn_id, query.subject] = _Question(query)
        question.query = query
        queue = self._queue(*query.connection_key)
        is_fresh = question.answer is not None and now - question.answered_at < query.max_age
        is_lost = bool(queue.problem) and now - queue.failed_at < _RETRY
        if question.pending is None and not is_fresh and not is_lost:
            question.pending = Future()
            self._enqueue(queue, lambda session: self._answer(question, session))
        return question

    def _newest(self, question: _Question, patience: float) -> Answer[Any]:
        queue, answer = self._queues[question.query.connection_key], question.answer
        age = time.monotonic() - question.answered_at
        if queue.problem:
            return Answer(None, queue.problem)
        if answer is not None and (question.pending is None or age <= question.query.max_age + patience):
            return answer
        silence = "yet" if answer is None else f"for {age:.0f} s"
        return Answer(None, f"Postgres behind connection {queue.conn_id} has not answered {silence}. Wait a moment")

    def _forget_old_questions(self, now: float) -> None:
        old = [
            key
            for key, question in self._questions.items()
            if question.pending is None and now - question.answered_at > _KEPT
        ]
        for key in old:
            del self._questions[key]

    def _queue(self, conn_id: str, connection: int) -> _ConnectionQueue:
        return self._queues.setdefault((conn_id, connection), _ConnectionQueue(conn_id))

    def _enqueue(self, queue: _ConnectionQueue, work: Callable[[Session | None], None]) -> None:
        queue.waiting.append(work)
        if not queue.busy:
            queue.busy = True
            self._submit(queue)

    def _submit(self, queue: _ConnectionQueue) -> None:
        threads = self._for_the_lost if queue.problem else self._threads
        threads.submit(self._attend, queue)
        if self._watching is None:
            self._watching = threading.Thread(target=self._watch, name="outbox-page-watch", daemon=True)
            self._watching.start()
        self._lock.notify_all()

    def _attend(self, queue: _ConnectionQueue) -> None:
        """Ask what waits for a connection, in a thread."""
        for _ in range(_IN_A_ROW):
            with self._lock:
                if not queue.waiting or self._closed:
                    queue.busy = False
                    return
                queue.used_at = time.monotonic()
                queue.cut_at, queue.was_cut = queue.used_at + _PATIENCE_WITH_A_QUESTION, False
            opened = self._opened(queue)
            with self._lock:
                works = [queue.waiting.popleft()] if opened else list(queue.waiting)
                if not opened:
                    queue.waiting.clear()
            for work in works:
                self._do(queue, work)
            with self._lock:
                queue.cut_at = None
        with self._lock:
            self._submit(queue)

    def _do(self, queue: _ConnectionQueue, work: Callable[[Session | None], None]) -> None:
        session = queue.session
        try:
            work(session)
        except Exception:
            if session is not None:
                session.forget()
        if session is not None and session.connection.closed:
            self._end(queue)

    def _answer(self, question: _Question, session: Session | None) -> None:
        query, queue = question.query, self._queues[question.query.connection_key]
        failure: Exception | None = None
        try:
            answer = Answer(query.ask(session)) if session is not None else Answer(None, queue.problem)
        except OutboxError as error:
            answer, failure = Answer(None, str(error)), error
        except Exception as error:  # a mistake of ours must not stop the other questions
            log.exception("the Outbox page could not ask connection %s", query.conn_id)
            answer, failure = Answer(None, f"The page could not ask: {error}. Look at the API server's log"), error
        with self._lock:
            question.answer, question.answered_at = answer, time.monotonic()
            pending, question.pending = question.pending, None
            if isinstance(failure, PostgresUnreachableError):
                queue.problem = _silence(queue) if queue.was_cut else _failure(queue, answer.problem)
                queue.failed_at = question.answered_at
        if pending is not None:
            pending.set_result(answer)
        if failure is not None:
            raise failure

    def _opened(self, queue: _ConnectionQueue) -> bool:
        """Whether the connection is open, or could be opened."""
        if queue.session is not None and not queue.session.connection.closed:
            return True

        def opening(connection: psycopg.Connection[Any]) -> None:
            with self._lock:
                queue.opening = connection

        try:
            given = self._data_source(queue.conn_id)
            source = make_conninfo(given, connect_timeout=_CONNECT_SECONDS, application_name="airflow-outbox page")
            connection = connect(source, purpose="page", opened=opening)
            begin_session(connection, seconds=_STATEMENT_SECONDS)
        except Exception as error:
            if not isinstance(error, OutboxError):
                log.exception("the Outbox page could not open connection %s", queue.conn_id)
            self._end(queue)
            with self._lock:
                queue.problem = _silence(queue) if queue.was_cut else _failure(queue, str(error))
                queue.failed_at = time.monotonic()
            return False
        with self._lock:
            queue.session, queue.opening, queue.problem = Session(connection), None, ""
        return True

    def _end(self, queue: _ConnectionQueue) -> None:
        with self._lock:
            connections = [queue.opening, queue.session.connection if queue.session else None]
            queue.session = queue.opening = None
            for connection in connections:
                if connection is not None:
                    with suppress(Exception):
                        connection.close()

    def _watch(self) -> None:
        """Cut off connections that are silent for too long, and end those that nobody uses."""
        while True:
            with self._lock:
                if self._closed:
                    return
                now, is_busy, idle = time.monotonic(), False, []
                for queue in self._queues.values():
                    is_busy |= queue.busy
                    if queue.cut_at is not None and now > queue.cut_at:
                        _cut(queue)
                    elif not queue.busy and queue.session is not None and now - queue.used_at > _IDLE:
                        idle.append(queue)
                for queue in idle:  # under the lock: nobody begins to use it meanwhile
                    self._end(queue)
                is_open = any(queue.session is not None for queue in self._queues.values())
                self._lock.wait(_GLANCE if is_busy else _IDLE / 4 if is_open else None)


def _silence(queue: _ConnectionQueue) -> str:
    return f"connection {queue.conn_id}: Postgres has not answered for some seconds. Look at that server"


def _failure(queue: _ConnectionQueue, problem: str) -> str:
    """Here, a data source is one of Airflow's connections."""
    named = problem.replace("the data source's", "that connection's").replace("the data source", "that connection")
    return f"connection {queue.conn_id}: {named}"


def _cut(queue: _ConnectionQueue) -> None:
    """Let the thread that waits for this connection's server learn that it is gone."""
    queue.was_cut = True
    for connection in (queue.opening, queue.session.connection if queue.session else None):
        if isinstance(connection, OutboxConnection):
            connection.hang_up()
