"""OutboxStashOperator: what it takes for a record. Its work in a database is tested with one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_outbox import OutboxRecord
from airflow_outbox.errors import InvalidRecordError
from airflow_outbox.hooks.commit_id import commit_id
from airflow_outbox.operators.stash import OutboxStashOperator, read_records


def test_records_are_mappings_or_records() -> None:
    whole = OutboxRecord("t", b"k", b"v", [("h", "1"), ("h", "2")], 3)
    assert read_records(
        [
            {"topic": "t", "key": "k"},
            {"topic": "t", "key": "k", "value": "v", "headers": {"h": "1"}, "partition": 3},
            {"topic": "t", "key": "k", "value": None, "headers": [["h", "1"], ["h", "2"]]},
            whole,
        ]
    ) == [
        OutboxRecord("t", "k", None),
        OutboxRecord("t", "k", "v", {"h": "1"}, 3),
        OutboxRecord("t", "k", None, (("h", "1"), ("h", "2"))),
        whole,
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([{"topic": "t", "key": "k"}, {"topic": "t"}], "record 1: key: is missing"),
        ([{"key": "k"}], "record 0: topic: is missing"),
        ([{"topic": "t", "key": "k", "payload": "v"}], "record 0: payload: unknown; the fields are topic, key, value"),
        (["t"], "record 0: record: must be a mapping"),
        ("[{'topic': 't'}]", "render_template_as_native_obj"),
        ({"topic": "t", "key": "k"}, "a list is needed, not dict"),
        (None, "a list is needed, not NoneType"),
    ],
)
def test_what_is_no_record_is_named(given: Any, problem: str) -> None:
    with pytest.raises(InvalidRecordError, match=problem):
        read_records(given)


def test_records_and_statement_are_templates() -> None:
    with DAG("d"):
        task = OutboxStashOperator(
            task_id="stash",
            records=[{"topic": "t", "key": "{{ ds }}", "headers": {"run": "{{ run_id }}"}}],
            sql="INSERT INTO days VALUES (%(day)s)",
            parameters={"day": "{{ ds }}"},
            version="{{ params.version }}",
        )
    task.render_template_fields({"ds": "2013-01-01", "run_id": "r", "params": {"version": 2}})
    assert task.records == [{"topic": "t", "key": "2013-01-01", "headers": {"run": "r"}}]
    assert task.parameters == {"day": "2013-01-01"}
    assert task.version == "2"


def test_a_task_instance_commits_under_its_own_name() -> None:
    instance = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    others = ({}, {"run_id": "s"}, {"map_index": 1})
    assert len({commit_id(SimpleNamespace(**{**instance, **other}), 0) for other in others}) == 3
    first, second = (commit_id(SimpleNamespace(**instance, try_number=number), 0) for number in (1, 2))
    assert first == second
