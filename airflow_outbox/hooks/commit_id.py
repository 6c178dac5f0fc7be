"""The id under which a task commits once over all its tries."""

from __future__ import annotations

from typing import Any

from airflow_outbox.postgres.commits import CommitId


def commit_id(task: Any, version: int) -> CommitId:
    """The id under which a task instance commits: the same at every try of it, and no other task's."""
    return CommitId("/".join(["airflow", task.dag_id, task.run_id, task.task_id, str(task.map_index)]), version)
