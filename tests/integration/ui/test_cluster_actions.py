"""The requests about clusters from the page: those of `airflow-outbox clusters`, on an outbox whose primary is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from support.acting import act
from support.harvesting import wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_leader_topic, make_ledger_topic
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import OutboxTable

NAME = OutboxName.parse("clustered")
CLUSTERED = {"outbox": "postgres_default:clustered"}
TRAIL = "SELECT action, on_behalf_of, matched, reason FROM clustered_trail ORDER BY number"


@pytest.fixture
def connection(outboxes: str, west_is_a_backup: None) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        yield connection


def make_own_topics(connection: psycopg.Connection[Any], kafka: EmbeddedKafka) -> None:
    """What `init` makes on the cluster that is there."""
    given = {"data_source": "", "outbox_table": "clustered", "kafka": {"bootstrap.servers": kafka.bootstrap}}
    config = HarvestConfig.validated(given, source="test")
    names = KafkaNames.of(config, OutboxTable(connection, NAME).identity().outbox_id)
    make_leader_topic(config, names)
    make_ledger_topic(config, names)


def reason_of(connection: psycopg.Connection[Any], cluster: str) -> str | None:
    return next(each.reason for each in read_membership(connection, NAME).clusters if each.name == cluster)


def wanted(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("SELECT attach_wanted, attach_how FROM clustered_state").fetchall()


def shown(client: httpx.Client, *texts: str) -> str:
    """The outbox's page that has these texts, soon: answers are shared for a second."""
    page = ""

    def is_shown() -> bool:
        nonlocal page
        page = " ".join(client.get("one", params=CLUSTERED).raise_for_status().text.split())
        return all(text in page for text in texts)

    wait_until(is_shown, doing=lambda: f"waiting for {texts} in {page}")
    return page


def question(client: httpx.Client, what: str, cluster: str) -> str:
    answer = client.get("ask-cluster", params={**CLUSTERED, "what": what, "cluster": cluster})
    return " ".join(answer.raise_for_status().text.split())


def test_a_backup_is_detached_and_attached_again(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    user = visitors["user"]
    page = shown(user, "ask-cluster?what=detach&amp;cluster=west", "ask-cluster?what=promote&amp;cluster=west")
    assert "what=attach" not in page
    assert "cluster=primary" not in page
    assert "primary alone has what is published" in question(user, "detach", "west")
    answer = act(user, "detach", "clustered", cluster="west", reason="a storm")
    assert "go on without west" in answer.raise_for_status().text
    assert read_membership(connection, NAME).parts == {"primary": "primary", "west": "owed"}
    assert reason_of(connection, "west") == "a storm"
    page = shown(user, "A storm", "ask-cluster?what=attach&amp;cluster=west", "ask-cluster?what=reset&amp;cluster=west")
    assert "what=detach" not in page
    assert "can't be asked for that now" in question(user, "detach", "west")
    assert 'name="accept"' in question(user, "attach", "west")
    assert "publishes to west" in act(user, "attach", "clustered", cluster="west").raise_for_status().text
    assert wanted(connection) == [("west", None)]
    shown(user, "owed, to be attached")
    answer = act(visitors["op"], "reset", "clustered", cluster="west")
    assert "count from now on" in answer.raise_for_status().text
    assert wanted(connection) == [("west", "reset")]
    assert connection.execute(TRAIL).fetchall() == [
        ("detach", "user", "west", "a storm"),
        ("attach", "user", "west", None),
        ("attach", "op", "west reset", None),
    ]


def test_what_a_cluster_has_alone_can_be_accepted(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    act(visitors["user"], "detach", "clustered", cluster="west").raise_for_status()
    assert reason_of(connection, "west") == "an operator has detached it"
    params, headers = {**CLUSTERED, "cluster": "west"}, {"X-Outbox-Request": "act", "Sec-Fetch-Site": "same-origin"}
    asked = visitors["user"].post("act/attach", params=params, json={"accept": "true"}, headers=headers)
    assert asked.status_code == 200, asked.text
    assert wanted(connection) == [("west", "accept")]


def test_one_that_is_detached_is_promoted_where_no_other_is_left(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any], kafka: EmbeddedKafka
) -> None:
    make_own_topics(connection, kafka)
    user = visitors["user"]
    act(user, "detach", "clustered", cluster="west").raise_for_status()
    assert 'name="accept_loss"' in question(user, "promote", "west")
    answer = act(user, "promote", "clustered", cluster="west").raise_for_status()
    assert "west is the primary" in answer.text
    assert read_membership(connection, NAME).parts == {"west": "primary", "primary": "owed"}


def test_who_may_only_look_sees_the_clusters_and_no_button(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    page = shown(visitors["viewer"], "<h3>Clusters</h3>", "west")
    assert "ask-cluster" not in page


@pytest.mark.parametrize(
    ("what", "cluster", "says"),
    [
        ("detach", "primary", "cluster primary is the primary, which always counts"),
        ("detach", "east", "has no cluster east"),
        ("attach", "west", "cluster west can&#39;t be attached"),
        ("reset", "west", "it counts already"),
        ("promote", "primary", "cluster primary is the primary already"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any], what: str, cluster: str, says: str
) -> None:
    answer = act(visitors["admin"], what, "clustered", cluster=cluster)
    assert (answer.status_code, says in answer.text) == (409, True), answer.text
    assert connection.execute(TRAIL).fetchall() == []


def test_a_lost_primary_is_replaced(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any], kafka: EmbeddedKafka
) -> None:
    make_own_topics(connection, kafka)
    assert "find other offsets there" in question(visitors["user"], "promote", "west")
    answer = act(visitors["user"], "promote", "clustered", cluster="west").raise_for_status()
    assert "west is the primary" in answer.text
    assert "These do not count: primary." in answer.text
    assert read_membership(connection, NAME).parts == {"west": "primary", "primary": "owed"}
    why = r"it did not answer for \d+ s|can't reach Kafka at .*"  # whichever comes first
    assert re.fullmatch(why, reason_of(connection, "primary") or "")
    assert connection.execute(TRAIL).fetchall() == [("promote", "user", "west", None)]


def test_the_brokers_have_to_be_known_to_airflow(visitors: dict[str, httpx.Client]) -> None:
    answer = act(visitors["admin"], "promote", "configured", cluster="west")
    assert answer.status_code == 409
    assert "airflow-outbox clusters promote west" in answer.text
