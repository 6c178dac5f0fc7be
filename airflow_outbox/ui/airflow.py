"""All that the page needs of Airflow. Nothing else in this room knows Airflow's insides.

An outbox is found in Dags (their newest version, as Airflow stores it), in triggers that run now, and in the
configuration. Operators of other classes than ours, and templates, are known when they run: their triggers are ours.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_outbox.errors import ConfigurationError, InvalidNameError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.ui.outboxes import Clusters, Found, KeyPattern, OutboxKey, TaskRole, Use, assembled
from airflow_outbox.values.outbox_list import OutboxPattern

__all__ = ["get_user"]
log = logging.getLogger(__name__)
_OLDEST = 30.0
"""Seconds for which what was found counts."""
_AT_ONCE = 100  # stored Dags that are read together
_OPERATORS = {
    "airflow_outbox.sensors.harvest.OutboxHarvestSensor": TaskRole.HARVESTS,
    "airflow_outbox.sensors.positions.OutboxPositionsSensor": TaskRole.WAITS,
    "airflow_outbox.sensors.published.OutboxPublishedSensor": TaskRole.WAITS,
    "airflow_outbox.operators.stash.OutboxStashOperator": TaskRole.WRITES,
    "airflow_outbox.operators.spark.OutboxSparkSubmitOperator": TaskRole.WRITES,
}
_TRIGGERS = {
    "airflow_outbox.triggers.harvest.OutboxHarvestTrigger": TaskRole.HARVESTS,
    "airflow_outbox.triggers.positions.OutboxPositionsTrigger": TaskRole.WAITS,
    "airflow_outbox.triggers.published.OutboxPublishedTrigger": TaskRole.WAITS,
    "airflow_outbox.triggers.watermark.OutboxWatermarkTrigger": TaskRole.WAITS,
}
_DEFAULTS = {"postgres_conn_id": "postgres_default", "outbox": "outbox"}
_DEFAULT_BROKERS = "kafka_default"


def uses_in(dag_id: str, data: Mapping[str, Any]) -> Iterator[Use]:
    """Yield the uses of outboxes in a Dag as Airflow stores it."""
    dag = data.get("dag") or {}
    for task in dag.get("tasks") or ():
        yield from _uses_in_task(dag_id, task.get("__var") or {})
    yield from _watchers(dag_id, dag.get("timetable"))


def _uses_in_task(dag_id: str, task: Mapping[str, Any]) -> Iterator[Use]:
    role = _OPERATORS.get(f"{task.get('_task_module')}.{task.get('task_type')}")
    if role is None:
        return
    task_id = str(task.get("task_id"))
    if not task.get("_is_mapped"):
        yield from _uses(dag_id, task_id, role, task)
        return
    given = {**_DEFAULTS, **(task.get("partial_kwargs") or {})}
    expanded = (task.get("expand_input") or {}).get("value")
    lists = expanded.get("__var") if isinstance(expanded, Mapping) else expanded
    if isinstance(lists, Mapping):  # a list for each argument
        values = {name: lists[name] for name in _DEFAULTS if name in lists}
        each: list[Mapping[str, Any]] = [{}]
        for name, choices in values.items():
            known = choices if isinstance(choices, list) else [None]
            each = [{**one, name: choice} for one in each for choice in known]
    elif isinstance(lists, list):  # the arguments of each instance
        each = [one.get("__var") or {} if isinstance(one, Mapping) else {} for one in lists]
    else:  # known when it runs
        each = [dict.fromkeys(_DEFAULTS)]
    yield from dict.fromkeys(use for one in each for use in _uses(dag_id, task_id, role, {**given, **one}))


def _watchers(dag_id: str, node: Any) -> Iterator[Use]:
    if isinstance(node, list):
        for each in node:
            yield from _watchers(dag_id, each)
    elif isinstance(node, Mapping):
        for watcher in node.get("watchers") or ():
            trigger = watcher.get("trigger") or {}
            if (role := _TRIGGERS.get(trigger.get("classpath", ""))) is not None:
                yield from _uses(dag_id, None, role, trigger.get("kwargs") or {})
        for name, each in node.items():
            if name != "watchers":
                yield from _watchers(dag_id, each)


def _uses(dag_id: str, task_id: str | None, role: TaskRole, given: Mapping[str, Any]) -> Iterator[Use]:
    """Yield a use for each outbox that is named, and for each pattern."""
    conn_id, named = (given.get(name, default) for name, default in _DEFAULTS.items())
    clusters = _clusters_in(given) if role is TaskRole.HARVESTS else None
    brokers = _brokers(given, clusters) if role is TaskRole.HARVESTS else ()
    for name in named if isinstance(named, list) else [named]:
        key = pattern = None
        if all(isinstance(value, str) and not _is_template(value) for value in (conn_id, name)):
            with suppress(InvalidNameError, ValueError):  # the task will say so
                if isinstance(named, list) and not (entry := OutboxPattern.parse(name)).is_a_name:
                    pattern = KeyPattern(conn_id, entry)
                else:
                    key = OutboxKey.of(conn_id, name)
        yield Use(dag_id, task_id, role, key, clusters, brokers, pattern)


def _brokers(given: Mapping[str, Any], clusters: Clusters | None) -> tuple[str, ...]:
    if clusters is not None:
        return tuple(
            word for name, conn_id in clusters.kafka_conn_ids.items() for word in ("--cluster", f"{name}={conn_id}")
        )
    one = given.get("kafka_conn_id")
    return ("--kafka-conn-id", one) if isinstance(one, str) and one != _DEFAULT_BROKERS else ()


def _clusters_in(given: Mapping[str, Any]) -> Clusters | None:
    conn_ids, settings = (_decoded(given.get(name)) for name in ("kafka_conn_ids", "settings"))
    if not isinstance(conn_ids, Mapping) or not conn_ids:
        return None
    if not all(isinstance(each, str) and not _is_template(each) for item in conn_ids.items() for each in item):
        return None
    return Clusters(dict(conn_ids), dict(settings) if isinstance(settings, Mapping) else {})


def _decoded(value: Any) -> Any:
    """A value as it was: Airflow encodes those of watchers."""
    return BaseSerialization.deserialize(value) if isinstance(value, Mapping) and "__type" in value else value


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


class Finder:
    """Finds the outboxes, at most every 30 s, and reads only Dags that have changed. Blocks; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found = Found()
        self._until = 0.0
        self._dags: dict[str, tuple[str, list[Use]]] = {}

    def find(self) -> Found:
        """Return what was found."""
        if time.monotonic() < self._until:
            return self._found
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = self._look()
                self._until = time.monotonic() + _OLDEST
            return self._found

    def _look(self) -> Found:
        with create_session() as session:
            self._read_dags(session)
            running = list(_running(session))
        in_dags = [use for _, uses in self._dags.values() for use in uses]
        return assembled([*running, *in_dags], configured())

    def _read_dags(self, session: Any) -> None:
        stored = SerializedDagModel
        newest = (
            select(stored.dag_id, func.max(stored.created_at).label("newest"))
            .join(DagModel, DagModel.dag_id == stored.dag_id)
            .where(DagModel.is_stale.is_(False))
            .group_by(stored.dag_id)
            .subquery()
        )
        is_newest = (newest.c.dag_id == stored.dag_id) & (newest.c.newest == stored.created_at)
        hashes = dict(session.execute(select(stored.dag_id, stored.dag_hash).join(newest, is_newest)).all())
        self._dags = {dag_id: kept for dag_id, kept in self._dags.items() if hashes.get(dag_id) == kept[0]}
        changed = sorted(hashes.keys() - self._dags.keys())
        for start in range(0, len(changed), _AT_ONCE):
            some = changed[start : start + _AT_ONCE]
            for row in session.scalars(select(stored).join(newest, is_newest).where(stored.dag_id.in_(some))):
                self._dags[row.dag_id] = row.dag_hash, list(_uses_if_readable(row.dag_id, row.data))
            session.expunge_all()


def _uses_if_readable(dag_id: str, data: Any) -> Iterator[Use]:
    """Yield a Dag's uses. One that stores something unheard-of must not hide the others' outboxes."""
    try:
        yield from list(uses_in(dag_id, data or {}))
    except Exception:
        log.exception("the Outbox page cannot read what Airflow has stored of Dag %s", dag_id)


def _running(session: Any) -> Iterator[Use]:
    """Yield the uses of deferred tasks, whose triggers have every template filled in."""
    query = (
        select(Trigger, TaskInstance.dag_id, TaskInstance.task_id)
        .join(TaskInstance, TaskInstance.trigger_id == Trigger.id)
        .where(Trigger.classpath.in_(_TRIGGERS))
    )
    for trigger, dag_id, task_id in session.execute(query):
        try:
            kwargs = trigger.kwargs
        except Exception:  # another Fernet key, for instance
            log.exception("the Outbox page cannot read the trigger of task %s of Dag %s", task_id, dag_id)
            continue
        yield from _uses(dag_id, task_id, _TRIGGERS[trigger.classpath], kwargs)


def configured() -> list[OutboxKey]:
    """Return the outboxes of `[outbox] outboxes`. A text that names none is left out: the page must show the others."""
    found = []
    for text in re.split(r"[,\n]", conf.get("outbox", "outboxes", fallback="") or ""):
        try:
            found += [OutboxKey.parse(text)] if text.strip() else []
        except OutboxError:
            continue
    return found


def base_path() -> str:
    """Return the path of `[api] base_url`, without a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def public_host() -> str:
    """Return host and port of `[api] base_url`: what browsers see, whatever a proxy makes of it."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").netloc


def login_url() -> str:
    """Return where to log in, and come back to the page from."""
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return str(get_auth_manager().get_url_login(next_url=f"{base}/outbox/"))


def data_source(conn_id: str) -> str:
    """Return the connection as a libpq connection string; it holds the password. Blocks. Raises ConfigurationError."""
    try:
        return OutboxHook(postgres_conn_id=conn_id).data_source()
    except OutboxError:
        raise
    except Exception as error:  # Airflow, its secrets backends and cloud logins raise what they like
        raise ConfigurationError(
            f"it can't be resolved: {str(error).rstrip('.')}. Make it, or correct it, in Airflow"
        ) from error


def harvest_config(key: OutboxKey, clusters: Clusters) -> HarvestConfig:
    """Return the configuration by which an outbox is harvested; it holds passwords. It may block. Raises
    ConfigurationError.
    """
    try:
        hook = OutboxHook(postgres_conn_id=key.conn_id, outbox=key.name, kafka_conn_ids=clusters.kafka_conn_ids)
        return hook.config(**clusters.settings)
    except OutboxError:
        raise
    except Exception as error:  # as above
        raise ConfigurationError(
            f"its connections can't be resolved: {str(error).rstrip('.')}. Make them, or correct them, in Airflow"
        ) from error


def sees_plugins(user: Any) -> bool:
    """Whether the user may see what plugins show."""
    return get_auth_manager().is_authorized_view(access_view=AccessView.PLUGINS, user=user)


def may_read_dag(user: Any, dag_id: str) -> bool:
    return get_auth_manager().is_authorized_dag(method="GET", details=_dag(dag_id), user=user)


def may_edit_dags(user: Any, dag_ids: Iterable[str]) -> bool:
    """Whether the user may edit every one of these Dags."""
    asked: Any = [{"method": "PUT", "details": _dag(dag_id)} for dag_id in dag_ids]
    return get_auth_manager().batch_is_authorized_dag(asked, user=user)


def may_edit_connection(user: Any, conn_id: str) -> bool:
    details = ConnectionDetails(conn_id=conn_id)
    return get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user)


def _dag(dag_id: str) -> DagDetails:
    if not hasattr(DagModel, "get_team_name"):  # before 3.2
        return DagDetails(id=dag_id)
    return DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))


def shows_values_to_readers() -> bool:
    """Whether everybody who may read an outbox may see its records' values and headers."""
    return conf.get("outbox", "values", fallback="act") == "read"
