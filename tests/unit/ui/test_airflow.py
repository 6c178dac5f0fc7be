"""Finding outboxes in Dags as Airflow stores them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetWatcher, BaseOperator
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseTrigger

from airflow_outbox.assets import outbox_asset
from airflow_outbox.errors import OutboxError
from airflow_outbox.operators.stash import OutboxStashOperator
from airflow_outbox.provider_info import get_provider_info
from airflow_outbox.sensors.harvest import OutboxHarvestSensor
from airflow_outbox.sensors.positions import OutboxPositionsSensor
from airflow_outbox.sensors.published import OutboxPublishedSensor
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger
from airflow_outbox.ui import airflow as module
from airflow_outbox.ui.airflow import uses_in
from airflow_outbox.ui.outboxes import Clusters, KeyPattern, OutboxKey, TaskRole, Use, assembled
from airflow_outbox.values.outbox_list import OutboxPattern


def stored(dag: DAG) -> dict[str, Any]:
    data: dict[str, Any] = DagSerialization.to_dict(dag)
    return data


def found(dag: DAG) -> set[tuple[str | None, TaskRole, str]]:
    return {(use.task_id, use.role, str(use.key)) for use in uses_in("d", stored(dag))}


def test_tasks_are_found_with_their_defaults() -> None:
    with DAG("d", schedule=None) as dag:
        OutboxHarvestSensor(task_id="harvest")
        OutboxStashOperator(task_id="stash", records=[], postgres_conn_id="pg", outbox="shop.orders")
        OutboxPublishedSensor(task_id="wait", ticket="t", outbox='"Odd Name"')
        kafka = {"primary": "east", "west": "west"}
        OutboxPositionsSensor(task_id="move", group="shop", to="west", kafka_conn_ids=kafka, outbox="moved")
    assert found(dag) == {
        ("harvest", TaskRole.HARVESTS, "postgres_default:outbox"),
        ("stash", TaskRole.WRITES, "pg:shop.orders"),
        ("wait", TaskRole.WAITS, 'postgres_default:"Odd Name"'),
        ("move", TaskRole.WAITS, "postgres_default:moved"),
    }


def test_every_operator_and_trigger_with_an_outbox_is_known() -> None:
    """One that is missing here hides its outboxes from the page."""
    public = {f"{each.__module__}.{each.__qualname__}" for each in with_an_outbox()}
    assert public == module._OPERATORS.keys() | module._TRIGGERS.keys()


def with_an_outbox() -> Iterator[type[Any]]:
    info = get_provider_info()
    for kind, base in (("operators", BaseOperator), ("sensors", BaseOperator), ("triggers", BaseTrigger)):
        for name in (name for part in info[kind] for name in part["python-modules"]):
            of_module = import_module(name)
            for each in vars(of_module).values():
                if isinstance(each, type) and issubclass(each, base) and each.__module__ == name:
                    yield each


def test_watchers_are_found_wherever_they_stand_in_a_schedule() -> None:
    watched = OutboxHarvestTrigger(postgres_conn_id="pg", outbox="watched")
    asset = Asset("x://y", watchers=[AssetWatcher(name="w", trigger=watched)])
    other = outbox_asset("outbox://h:1/db/other", outbox="other")
    with DAG("d", schedule=(asset | (other & Asset("x://z")))) as dag:
        pass
    assert found(dag) == {
        (None, TaskRole.HARVESTS, "pg:watched"),
        (None, TaskRole.WAITS, "postgres_default:other"),
    }


def test_a_harvest_says_how_several_clusters_are_reached() -> None:
    conn_ids = {"primary": "east", "west": "west"}
    settings = {"require": "primary"}
    watched = OutboxHarvestTrigger(outbox="watched", kafka_conn_ids=conn_ids, settings=settings)
    asset = Asset("x://y", watchers=[AssetWatcher(name="w", trigger=watched)])
    with DAG("d", schedule=asset) as dag:
        OutboxHarvestSensor(task_id="harvest", kafka_conn_ids=conn_ids, settings=settings)
        OutboxHarvestSensor(task_id="templated", kafka_conn_ids={"primary": "{{ params.east }}"})
        OutboxHarvestSensor(task_id="one")
    known = {use.task_id: use.clusters for use in uses_in("d", stored(dag))}
    assert known == {
        "harvest": Clusters(conn_ids, {}),  # Airflow does not store a task's settings
        None: Clusters(conn_ids, settings),
        "templated": None,
        "one": None,
    }


def test_how_a_running_harvest_reaches_its_clusters_counts() -> None:
    key = OutboxKey("pg", "outbox")
    running, stored = (Use("d", "t", TaskRole.HARVESTS, key, Clusters({"primary": "k"}, {"n": n})) for n in (1, 2))
    [use] = assembled([running, stored], []).outboxes[key]
    assert use.clusters == running.clusters


def test_mapped_tasks_are_found() -> None:
    with DAG("d", schedule=None) as dag:
        OutboxStashOperator.partial(task_id="lists", records=[]).expand(outbox=["a", "b"])
        OutboxPublishedSensor.partial(task_id="dicts", outbox="c").expand_kwargs([{"ticket": "1"}, {"ticket": "2"}])
    assert found(dag) == {
        ("lists", TaskRole.WRITES, "postgres_default:a"),
        ("lists", TaskRole.WRITES, "postgres_default:b"),
        ("dicts", TaskRole.WAITS, "postgres_default:c"),
    }


def test_a_harvest_says_where_its_kafka_is() -> None:
    with DAG("d", schedule=None) as dag:
        OutboxHarvestSensor(task_id="default")
        OutboxHarvestSensor(task_id="named", kafka_conn_id="brokers")
        OutboxHarvestSensor(task_id="several", kafka_conn_ids={"primary": "east", "west": "west"})
        OutboxStashOperator(task_id="stash", records=[], kafka_conn_id="brokers")
    assert {use.task_id: use.brokers for use in uses_in("d", stored(dag))} == {
        "default": (),
        "named": ("--kafka-conn-id", "brokers"),
        "several": ("--cluster", "primary=east", "--cluster", "west=west"),
        "stash": (),
    }


@pytest.mark.parametrize("outbox", ["{{ params.outbox }}", "{% if x %}a{% endif %}"])
def test_a_template_is_known_when_it_runs(outbox: str) -> None:
    with DAG("d", schedule=None) as dag:
        OutboxHarvestSensor(task_id="harvest", outbox=outbox)
    assert found(dag) == {("harvest", TaskRole.HARVESTS, "None")}


def test_each_outbox_of_a_list_is_found() -> None:
    watched = OutboxHarvestTrigger(outbox=["c", "shop.d"])
    with DAG("d", schedule=Asset("x://y", watchers=[AssetWatcher(name="w", trigger=watched)])) as dag:
        OutboxHarvestSensor(task_id="harvest", outbox=["a", '"B *"', "tenant_*.outbox", "{{ params.outbox }}"])
    assert found(dag) == {
        ("harvest", TaskRole.HARVESTS, "postgres_default:a"),
        ("harvest", TaskRole.HARVESTS, 'postgres_default:"B *"'),
        ("harvest", TaskRole.HARVESTS, "None"),  # the pattern, and the template
        (None, TaskRole.HARVESTS, "postgres_default:c"),
        (None, TaskRole.HARVESTS, "postgres_default:shop.d"),
    }


def test_who_harvests_by_a_pattern_harvests_each_known_outbox_that_it_means() -> None:
    """Else somebody who may not edit that Dag could act on its outboxes."""
    one, other = OutboxKey("pg", "tenant_1.outbox"), OutboxKey("pg", "billing.outbox")
    usual, elsewhere = OutboxKey("pg", "outbox"), OutboxKey("pg2", "tenant_1.outbox")
    by_patterns = [
        Use(dag_id, "harvest", TaskRole.HARVESTS, None, pattern=KeyPattern("pg", OutboxPattern.parse(text)))
        for dag_id, text in (("all", "tenant_*.outbox"), ("usual", "out*"))
    ]
    known = assembled([*by_patterns, Use("a", "harvest", TaskRole.HARVESTS, one)], [other, usual, elsewhere])
    assert known.dags(one, TaskRole.HARVESTS) == ["a", "all"]
    assert known.dags(usual, TaskRole.HARVESTS) == ["usual"]
    assert known.dags(other) == known.dags(elsewhere) == []
    assert [use.key for use in known.of_dag("all")] == [None, one]


def test_an_outbox_that_only_a_pattern_means_is_used_by_its_dag() -> None:
    patterns = [KeyPattern("pg", OutboxPattern.parse(text)) for text in ("out*", "tenant_?.*")]
    uses = [Use("d", "harvest", TaskRole.HARVESTS, None, pattern=pattern) for pattern in patterns]
    usual, tenant, other = (OutboxKey("pg", name) for name in ("outbox", "tenant_1.outbox", "tenant_10.outbox"))
    named = assembled([*uses, Use("e", "stash", TaskRole.WRITES, usual)], [])
    assert named.patterns() == {"pg": [pattern.pattern for pattern in patterns]}
    assert named.dags(tenant, TaskRole.HARVESTS) == ["d"]
    assert named.uses(other) == ()
    found = named.also([OutboxKey("pg", "public.outbox"), tenant, other])
    assert list(found.outboxes) == [usual, tenant]
    assert found.dags(usual) == ["d", "e"]
    assert [use.key for use in found.of_dag("d")] == [None, None, usual, tenant]


def test_what_no_outbox_can_be_called_stops_nothing() -> None:
    with DAG("d", schedule=None) as dag:
        OutboxStashOperator(task_id="wrong", records=[], outbox="not a name")
        OutboxStashOperator(task_id="right", records=[])
    assert ("right", TaskRole.WRITES, "postgres_default:outbox") in found(dag)


def test_other_tasks_and_odd_data_are_no_uses() -> None:
    assert list(uses_in("d", {})) == []
    assert list(uses_in("d", {"dag": {"tasks": [{"__var": {"outbox": "x"}}], "timetable": None}})) == []


def test_a_dag_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    odd = {"dag": {"timetable": {"watchers": "not a list"}}}
    assert list(module._uses_if_readable("odd", odd)) == []
    assert "Dag odd" in caplog.text


def test_all_uses_of_an_outbox_come_together() -> None:
    key = OutboxKey("pg", "outbox")
    harvests = Use("b", "harvest", TaskRole.HARVESTS, key)
    writes = Use("a", "stash", TaskRole.WRITES, OutboxKey.of("pg", "OUTBOX"))
    templated = Use("a", "later", TaskRole.WRITES, None)
    known = assembled([harvests, writes, harvests, templated], [OutboxKey("other", "outbox")])
    assert known.outboxes == {OutboxKey("other", "outbox"): (), key: (writes, harvests)}
    assert known.dags(key) == ["a", "b"]
    assert known.dags(key, TaskRole.HARVESTS) == ["b"]
    assert known.of_dag("a") == [templated, writes]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("pg:outbox", OutboxKey("pg", "outbox")),
        (" pg : Shop.Orders", OutboxKey("pg", "shop.orders")),
        ('pg:"a:b"', OutboxKey("pg", '"a:b"')),
    ],
)
def test_the_configuration_names_connection_and_outbox(text: str, key: OutboxKey) -> None:
    assert OutboxKey.parse(text) == key
    assert OutboxKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["outbox", ":outbox", "pg:", "pg:a b"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(OutboxError):
        OutboxKey.parse(text)
