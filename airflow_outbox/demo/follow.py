"""Follow the demo from outside: the contents of Postgres and Kafka, and the state of Airflow's tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_outbox.demo.check import TopicReader
from airflow_outbox.demo.display import Display, Progression
from airflow_outbox.demo.embedded.airflow_api import AirflowApi
from airflow_outbox.errors import OutboxError

FLIGHTS_DAG, CHECK_DAG, HARVEST_DAG = "flights_published", "flights_check", "outbox_harvest"
STALL_SECONDS = 600.0  # a busy machine's Airflow takes minutes to start a task
_API_SECONDS = 2.0
_LOG_TAIL_LINES = 40
_FAILED_STATES = frozenset({"failed", "up_for_retry", "upstream_failed"})


class DemoError(OutboxError):
    """The demo could not go on. The message says what to look at."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a try of a task."""

    dag_id: str
    run_id: str
    task_id: str
    try_number: int
    state: str | None

    @property
    def has_failed(self) -> bool:
        return self.state in _FAILED_STATES

    def __str__(self) -> str:
        return f"task {self.dag_id}.{self.task_id} is {self.state or 'not scheduled yet'}"


class Follower:
    """Looks at everything repeatedly, and shows it."""

    def __init__(
        self, *, api: AirflowApi, connection: psycopg.Connection[Any], reader: TopicReader, display: Display
    ) -> None:
        self._api = api
        self._connection = connection
        self._reader = reader
        self._display = display
        self._asked = 0.0
        self._told: set[TaskState] = set()

    def until_all_has_arrived(self) -> None:
        """Wait until the tasks of the Dags `flights_published` and `flights_check` have succeeded, the outbox is empty,
        and all of Kafka is read.

        Raises DemoError when a task of these fails, or nothing has moved for long. Airflow starts the harvest again
        by itself when that has failed, as on a machine that is too busy.
        """
        before, moved, succeeded = Progression(), time.monotonic(), False
        while not (succeeded and self._is_drained()):
            progression = self._look()
            changed = self._changed_tasks() if self._is_time_to_ask() else []
            for task in changed:
                if task.has_failed and task.dag_id != HARVEST_DAG:
                    raise DemoError(self._story(task))
                self._tell(task)
            succeeded = all(self._has_succeeded(dag) for dag in (FLIGHTS_DAG, CHECK_DAG))
            if changed or progression != before:
                before, moved = progression, time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS:
                waiting = [self._story(task) for task in self._told if task.state != "success"]
                raise DemoError("\n".join([f"no progress for {STALL_SECONDS:.0f} s", *waiting]))
        self._reader.read_to_end()
        self._look()

    def for_ever(self) -> None:
        """Follow until this process is interrupted."""
        while True:
            self._look()
            if self._is_time_to_ask():
                for task in self._changed_tasks():
                    self._tell(task)

    def progression(self) -> Progression:
        """How far it is now."""
        query = """SELECT (SELECT coalesce(sum(records), 0) FROM outbox_commits)::bigint,
                          (SELECT coalesce(sum(published), 0) FROM outbox_shard)::bigint"""
        stashed, published = self._connection.execute(query).fetchall()[0]
        return Progression(stashed=stashed, published=published, seen=len(self._reader.delivered))

    def checked(self) -> int:
        """How many flights the Dag `flights_check` found equal in the topics and in the tables."""
        run, *_ = self._api.runs(CHECK_DAG)
        return int(self._api.xcom(CHECK_DAG, run["dag_run_id"], "compare")["flights"])

    def _has_succeeded(self, dag: str) -> bool:
        states = {task.state for task in self._told if task.dag_id == dag}
        return states == {"success"}

    def _look(self) -> Progression:
        self._reader.read(0.25)
        progression = self.progression()
        self._display.update(progression)
        return progression

    def _is_drained(self) -> bool:
        return self._connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is None

    def _is_time_to_ask(self) -> bool:
        """Whether Airflow may be asked again: each answer costs it some hundredths of a second."""
        now = time.monotonic()
        if now - self._asked < _API_SECONDS:
            return False
        self._asked = now
        return True

    def _changed_tasks(self) -> list[TaskState]:
        """Tasks of the newest runs whose state has changed since the last question."""
        states = [
            TaskState(dag, run["dag_run_id"], task["task_id"], task["try_number"], task["state"])
            for dag in (FLIGHTS_DAG, CHECK_DAG, HARVEST_DAG)
            for run in self._api.runs(dag)[:1]
            for task in self._api.tasks(dag, run["dag_run_id"])
        ]
        changed = [state for state in states if state not in self._told]
        self._told = set(states)
        return changed

    def _tell(self, task: TaskState) -> None:
        self._display.say(self._story(task) if task.has_failed else str(task))

    def _story(self, task: TaskState) -> str:
        log = self._api.task_log(task.dag_id, task.run_id, task.task_id, try_number=task.try_number)
        tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
        return f"{task}. The end of its log:\n{tail}"
