"""What is made of a broker's answers about consumer groups."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.positions.groups import ConsumerGroups
from airflow_outbox.positions.marks import Mark


def done(result: Any = None, error: int | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(KafkaException(BrokerError(error)))
    return future


def part(error: int | None = None) -> Any:
    return SimpleNamespace(
        topic="orders", partition=0, offset=7, metadata="", error=None if error is None else BrokerError(error)
    )


def groups_with(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Future[Any]]) -> ConsumerGroups:
    groups = ConsumerGroups({"bootstrap.servers": "127.0.0.1:1"})

    def ask(requests: Any, **_: Any) -> dict[str, Future[Any]]:
        return {each.group_id: answers[each.group_id] for each in requests}

    client = SimpleNamespace(list_consumer_group_offsets=ask, alter_consumer_group_offsets=ask, poll=lambda _: 0)
    monkeypatch.setattr(groups, "_client", client)
    return groups


def test_one_coordinator_that_does_not_answer_stops_no_other_group(monkeypatch: pytest.MonkeyPatch) -> None:
    good = SimpleNamespace(topic_partitions=[part()])
    groups = groups_with(monkeypatch, {"a": done(error=BrokerError._TIMED_OUT), "b": done(good)})
    found = groups.committed(["a", "b"])
    assert "coordinates group a does not answer" in str(found["a"])
    assert not isinstance(found["b"], KafkaError)
    assert groups.commit({"b": {("orders", 0): Mark("x", 1, 1, 1)}}) == {"b": None}
    lost = groups_with(monkeypatch, {"a": done(error=BrokerError._TRANSPORT)})
    with pytest.raises(KafkaError, match="can't reach Kafka"):
        lost.committed(["a"])


def listing(*errors: int) -> Future[Any]:
    member = SimpleNamespace(group_id="a", state=ConsumerGroupState.STABLE)
    return done(SimpleNamespace(valid=[member], errors=[BrokerError(error) for error in errors]))


def test_a_broker_that_reads_its_groups_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ConsumerGroups({"bootstrap.servers": "127.0.0.1:1"})
    answers = [
        listing(BrokerError.COORDINATOR_LOAD_IN_PROGRESS),
        done(error=BrokerError.COORDINATOR_NOT_AVAILABLE),
        listing(),
        listing(BrokerError.COORDINATOR_LOAD_IN_PROGRESS, BrokerError.CLUSTER_AUTHORIZATION_FAILED),
    ]
    client = SimpleNamespace(list_consumer_groups=lambda **_: answers.pop(0), poll=lambda _: 0)
    monkeypatch.setattr(groups, "_client", client)
    assert groups.members_by_group() == {"a": True}
    with pytest.raises(KafkaError, match=r"does not list all consumer groups: .*Cluster authorization failed"):
        groups.members_by_group()


def test_missing_rights_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    no_topic = SimpleNamespace(topic_partitions=[part(BrokerError.TOPIC_AUTHORIZATION_FAILED)])
    answers = {"a": done(error=BrokerError.GROUP_AUTHORIZATION_FAILED), "b": done(no_topic)}
    groups = groups_with(monkeypatch, answers)
    marks = {group: {("orders", 0): Mark("x", 1, 1, 1)} for group in answers}
    for found in (groups.committed(answers), groups.commit(marks)):
        assert str(found["a"]).startswith("Kafka does not allow READ on group a. `airflow-outbox check --acls table`")
        assert str(found["b"]).startswith("Kafka does not allow READ on topic orders.")


def test_many_groups_are_asked_over_several_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers the requests of a connection one after another."""
    names = [f"g{number}" for number in range(45)]
    groups = groups_with(monkeypatch, {name: done(SimpleNamespace(topic_partitions=[part()])) for name in names})
    first = groups._client
    made: list[list[str]] = []

    def client() -> Any:
        asked: list[str] = []
        made.append(asked)

        def ask(requests: Any, **more: Any) -> Any:
            asked.extend(each.group_id for each in requests)
            return first.list_consumer_group_offsets(requests, **more)

        return SimpleNamespace(list_consumer_group_offsets=ask, poll=lambda _: 0)

    monkeypatch.setattr(groups, "_new_client", client)
    assert groups.committed(names[:9]).keys() == {*names[:9]}
    assert made == []
    assert groups.committed(names).keys() == {*names}
    assert [len(asked) for asked in made] == [9] * 4
    groups.committed(names * 3)
    assert len(made) == 7
