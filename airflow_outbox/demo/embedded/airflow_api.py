"""A small client of Airflow's REST API: what a user does and sees in the UI."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from airflow_outbox.errors import OutboxError

_TRIES = 5  # of a request that may be made twice: a busy machine's Airflow takes long at first
ENDED_STATES = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


class AirflowApiError(OutboxError):
    """Airflow's REST API refused or did not answer. The message says what was asked; the rest is in Airflow's log."""


class AirflowTimeoutError(AirflowApiError):
    """Airflow has not done in time what it was asked for."""


class AirflowApi:
    """Airflow at `url`, for one user. The token is fetched at the first call. Every method raises `AirflowApiError`."""

    def __init__(self, url: str, *, user: str, password: str, timeout: float = 60.0) -> None:
        self._login = {"username": user, "password": password}
        self._seconds = timeout
        self._client = httpx.Client(base_url=url, timeout=timeout, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def healthy(self) -> bool:
        """Whether the API server answers, and metadata database, scheduler, triggerer and Dag processor are well."""
        try:
            answer = self._client.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return False
        if answer.status_code != httpx.codes.OK:
            return False
        parts = answer.json()
        return all(
            (parts.get(part) or {}).get("status") == "healthy"
            for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )

    def import_errors(self) -> dict[str, str]:
        """The Dag files that could not be read, by name, with the traceback."""
        return {entry["filename"]: entry["stack_trace"] for entry in self._ask("GET", "/importErrors")["import_errors"]}

    def has_dag(self, dag_id: str) -> bool:
        """Whether the Dag processor has read this Dag."""
        return self._ask("GET", f"/dags/{quote(dag_id)}", missing_ok=True) is not None

    def wait_for_dag(self, dag_id: str, *, timeout: float = 60.0) -> None:
        """Wait until the Dag has been read. An unreadable file is an error at once."""

        def known() -> bool:
            if self.has_dag(dag_id):
                return True
            errors = self.import_errors()
            if errors:
                raise AirflowApiError(
                    "a Dag file can't be read:\n" + "\n".join(f"{name}\n{text}" for name, text in errors.items())
                )
            return False

        self.wait(known, timeout=timeout, what=f"Dag {dag_id} to be read")

    def unpause(self, dag_id: str) -> None:
        self._ask("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        self._ask("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": True})

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run and return its id. `conf` are the run's parameters."""
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": run_id}
        return str(self._ask("POST", f"/dags/{quote(dag_id)}/dagRuns", json=body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The Dag's runs, newest first, as Airflow describes them (`dag_run_id`, `state`, `run_type`, `conf`, …)."""
        answer = self._ask("GET", f"/dags/{quote(dag_id)}/dagRuns", params={"order_by": "-id", "limit": 100})
        return list(answer["dag_runs"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        return str(self._ask("GET", _run_path(dag_id, run_id))["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """A task instance as Airflow describes it (`state`, None until it is scheduled; `try_number`, `trigger`, …)."""
        return dict(self._ask("GET", _task_path(dag_id, run_id, task_id)))

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All task instances of a run."""
        return list(self._ask("GET", f"{_run_path(dag_id, run_id)}/taskInstances")["task_instances"])

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int | None = None) -> str:
        """The log of a try (the present one by default), one message a line; also while the task is deferred."""
        number = try_number or int(self.task(dag_id, run_id, task_id)["try_number"]) or 1
        path = f"{_task_path(dag_id, run_id, task_id)}/logs/{number}"
        answer = self._ask("GET", path, params={"full_content": True}, missing_ok=True)
        return "\n".join(_log_line(line) for line in answer["content"]) if answer else ""

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """An XCom's value; None when there is none."""
        path = f"{_task_path(dag_id, run_id, task_id)}/xcomEntries/{quote(key)}"
        answer = self._ask("GET", path, params={"deserialize": True}, missing_ok=True)
        return answer["value"] if answer else None

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """The addresses that a task links to, by the names of the links; None where there is none yet."""
        found: dict[str, str | None] = self._ask("GET", f"{_task_path(dag_id, run_id, task_id)}/links")["extra_links"]
        return found

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task `success`, `failed` or `skipped`, as a user ends it by hand."""
        self._ask("PATCH", _task_path(dag_id, run_id, task_id), json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task, so that it runs again."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self._ask("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float) -> str:
        """Wait until a run has ended; return its state."""
        state = ""

        def ended() -> bool:
            nonlocal state
            state = self.run_state(dag_id, run_id)
            return state in ENDED_STATES

        self.wait(ended, timeout=timeout, what=f"run {run_id} of Dag {dag_id} to end")
        return state

    def wait_for_task(self, dag_id: str, run_id: str, task_id: str, state: str, *, timeout: float) -> None:
        """Wait until a task is in `state`. Raises `AirflowApiError` with its log if it ends in another state."""

        def reached() -> bool:
            found = self.task(dag_id, run_id, task_id)["state"]
            if found != state and found in ENDED_STATES:
                log = self.task_log(dag_id, run_id, task_id)
                raise AirflowApiError(f"task {dag_id}.{task_id} is {found}, not {state}. Its log:\n{log}")
            return bool(found == state)

        self.wait(reached, timeout=timeout, what=f"task {dag_id}.{task_id} to be {state}")

    def wait(self, reached: Callable[[], bool], *, timeout: float, what: str, interval: float = 0.5) -> None:
        """Ask `reached` until it says yes. Raises `AirflowTimeoutError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not reached():
            if time.monotonic() > deadline:
                raise AirflowTimeoutError(f"timed out after {timeout:.0f} s, waiting for {what}")
            time.sleep(interval)

    def _ask(self, method: str, path: str, *, missing_ok: bool = False, **request: Any) -> Any:
        """Ask Airflow. A request that only reads, or sets a state, is made again if no answer comes in time.

        A POST does something each time it is made. It is made once, and its answer is waited for as long as for all
        tries of another.
        """
        once = method == "POST"
        if once:
            request["timeout"] = _TRIES * self._seconds
        for tries_left in reversed(range(1 if once else _TRIES)):
            try:
                answer = self._answer(method, path, **request)
                break
            except httpx.TimeoutException as error:
                if not tries_left:
                    raise AirflowTimeoutError(f"no answer from Airflow to {method} {path} in time") from error
        if missing_ok and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        _raise_unless(answer, f"{method} {path}")
        return answer.json()

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            if "Authorization" not in self._client.headers:
                token = self._client.post("/auth/token", json=self._login)
                _raise_unless(token, "the login")
                self._client.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
            return self._client.request(method, f"/api/v2{path}", **request)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError as error:
            raise AirflowApiError(f"no answer from Airflow to {method} {path}: {error}") from error


def _raise_unless(answer: httpx.Response, what: str) -> None:
    if not answer.is_success:
        raise AirflowApiError(f"Airflow refused {what} ({answer.status_code}): {answer.text[:2000]}")


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}"


def _task_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}"


def _log_line(line: str | Mapping[str, Any]) -> str:
    """A structured log message as one text: its time, level, event and error."""
    if isinstance(line, str):
        return line
    parts = (line.get("timestamp"), str(line.get("level", "")).upper(), line.get("event"), line.get("error_detail"))
    return " ".join(str(part) for part in parts if part)
