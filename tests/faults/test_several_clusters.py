"""Two real clusters: leaders are killed between any two steps, and in the end both clusters hold the same."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from faults.two_clusters import TwoClusters, is_held
from support.harvesting import COMMAND, PARTITIONS, PATIENCE, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.check import examine
from airflow_outbox.operate.clusters import promote
from airflow_outbox.operate.finding import Severity
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.operate.status import read_status
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State

REFUSED = "SELECT DISTINCT kafka_topic, cause, reason FROM outbox_parked WHERE cause IS NOT NULL ORDER BY kafka_topic"


def found(config: HarvestConfig) -> list[str]:
    """The things that `check` finds to be missing."""
    return [finding.text for finding in examine(config) if finding.severity is Severity.MISSING]


@pytest.mark.long
@pytest.mark.parametrize("step", ["commit on the primary", "commit on a backup", "purge"])
def test_a_leader_is_killed_between_two_steps(clusters: TwoClusters, step: str) -> None:
    clusters.dies(clusters.start(kill=step))
    clusters.start()
    clusters.ends_well()


@pytest.mark.long(steps="all")
@pytest.mark.parametrize("steps", ["some", "all"])
def test_successors_are_killed_while_they_complete_what_only_the_primary_has(clusters: TwoClusters, steps: str) -> None:
    clusters.dies(clusters.start(kill="commit on a backup"))
    for step in ("note producers", "replay", "commit", "replayed", "begin") if steps == "all" else ("commit",):
        successor = clusters.start(kill=step, armed=True)
        successor.ends()
        assert successor.popen.returncode == -signal.SIGKILL
    clusters.start()
    clusters.ends_well()


def test_all_waits_for_a_backup_that_is_away_and_goes_on_when_it_is_back(
    clusters: TwoClusters, backup: EmbeddedKafka
) -> None:
    member = clusters.start()
    clusters.stash(200)
    wait_until(lambda: clusters.outbox.left() == 0)
    backup.kill()
    clusters.stash(200)
    config = clusters.config
    seen = [read_verdict(config)]
    wait_until(lambda: is_held(seen, config))
    assert seen[-1].cause.startswith(f"all waits for cluster backup: can't reach Kafka at {backup.bootstrap}")
    assert "bootstrap.servers" in seen[-1].remedy

    def is_shown() -> bool:
        with psycopg.connect(clusters.outbox.database) as connection:
            on_primary, on_backup = read_status(connection, config.name).clusters
        assert (on_primary.name, on_primary.part, on_primary.error) == ("primary", "primary", None)
        assert (on_backup.name, on_backup.part) == ("backup", "backup")
        # While a leader tries again, nothing holds for a moment.
        return is_held(seen, config) and seen[-1].since is not None and on_backup.held_since == seen[-1].since

    wait_until(is_shown)
    wait_until(lambda: "can't reach Kafka" in (member.newest_progress.get("clusters", {}).get("backup") or ""))
    assert member.newest_progress["clusters"]["primary"] is None
    backup.start()
    clusters.ends_well()
    wait_until(lambda: read_verdict(config).state is State.HEALTHY)


def test_a_record_that_a_backup_would_refuse_goes_nowhere_and_names_it(clusters: TwoClusters) -> None:
    outbox, config = clusters.outbox, clusters.config
    assert found(config) == []
    missing, more, fewer = (f"{outbox.topic}-{which}" for which in ("missing", "more", "fewer"))
    for topic in (missing, more, fewer):
        make_topic({"bootstrap.servers": outbox.bootstrap}, topic)
    on_backup = {"bootstrap.servers": clusters.backup.bootstrap}
    divided = {more: PARTITIONS + 2, fewer: PARTITIONS - 1}
    for topic, partitions in divided.items():
        make_topic(on_backup, topic, partitions=partitions)
    # Keys of all partitions; some would fit into those that the backup has.
    records = [OutboxRecord(topic, f"k{number}", "v") for topic in (missing, *divided) for number in range(9)]
    with psycopg.connect(outbox.database) as connection:
        stash(connection, records)
    reasons = {
        topic: f"cluster backup: topic {topic} has {partitions} partitions there and {PARTITIONS} on the primary, so "
        "keys would not stay in their partitions. Give it as many on both"
        for topic, partitions in divided.items()
    }
    waits = f"cluster backup: records wait for topic {missing}, which does not exist. Create it"
    assert sorted(found(config)) == sorted([waits, *reasons.values()])
    clusters.start()
    clusters.stash(10)
    clusters.ends_well()
    assert outbox.query(REFUSED) == [
        (fewer, "partition", reasons[fewer]),
        (missing, "unknown_topic", f"cluster backup: topic {missing} does not exist. Create it"),
        (more, "partition", reasons[more]),
    ]
    assert outbox.query("SELECT count(*) FROM outbox_parked") == [(27,)]
    # With as many on both, all come out in their order.
    admin = AdminClient(on_backup)
    admin.create_partitions([NewPartitions(fewer, PARTITIONS)])[fewer].result()
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ParkedRequests(connection, config.name).ask("retry", Choice(topic=fewer))
    wait_until(lambda: outbox.query(f"SELECT count(*) FROM outbox_parked WHERE kafka_topic = '{fewer}'") == [(0,)])
    found_on = [replace(cluster, topic=fewer).committed() for cluster in (outbox, clusters.backup)]
    places = [sorted((message.partition(), message.key()) for message in messages) for messages in found_on]
    assert places[0] == places[1]
    assert len(places[0]) == 9


@pytest.mark.parametrize("case", ["same", "more", "fewer"])
def test_a_configuration_names_the_clusters_of_the_outbox(clusters: TwoClusters, case: str) -> None:
    """Others are refused before anything is published."""
    given = clusters.outbox.settings["clusters"]
    primary, backup = given["primary"], given["backup"]
    named, says = {
        "same": ({"primary": primary, "backup": primary}, "backup and primary are the same cluster"),
        "more": ({**given, "west": backup}, "is not published to cluster west"),
        "fewer": ({"primary": primary}, "is published to cluster backup, which"),
    }[case]
    clusters.outbox.settings["clusters"] = named
    assert says in "; ".join(found(clusters.config))
    member = clusters.start()
    assert says in member.wait_for("error")["error"]
    assert "took_over" not in {event["event"] for event in member.events}


def test_a_cluster_is_detached_and_attached_and_promoted_while_records_come(
    clusters: TwoClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_outbox.operate.clusters._REACHED_WITHIN", PATIENCE)  # a busy machine loses no cluster
    clusters.start().wait_for("took_over")
    clusters.stash()
    clusters.detach("backup")
    clusters.is_harvested()
    clusters.attach("backup")
    clusters.stash()
    assert promote(clusters.config, "backup").parts == {"backup": "primary", "primary": "backup"}
    clusters.start()
    clusters.is_harvested()
    clusters.ends_well()


@pytest.mark.long
def test_the_primary_is_lost_and_comes_back(swapped: TwoClusters, backup: EmbeddedKafka) -> None:
    swapped.start().wait_for("took_over")
    swapped.is_harvested()
    swapped.stash()
    backup.kill()
    assert promote(swapped.config, "backup").parts == {"backup": "primary", "primary": "owed"}
    swapped.is_harvested()
    backup.start()
    try:
        swapped.attach("primary")
    except OutboxError as error:  # the old leader had committed a batch there just before
        refusal = str(error)
    else:
        refusal = ""
        swapped.is_harvested()
        swapped.ends_well()
    assert not refusal or "elsewhere" in refusal


@pytest.mark.long
def test_an_outbox_that_was_harvested_gets_another_cluster(
    database: str, kafka: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    """It has what is published from then on."""
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    scene = TwoClusters(outbox, replace(outbox, bootstrap=backup.bootstrap))
    try:
        first = scene.start()
        scene.stash(10)
        wait_until(lambda: outbox.left() == 0)
        first.popen.terminate()
        first.ends()
        make_topic({"bootstrap.servers": backup.bootstrap}, outbox.topic)
        outbox.settings["clusters"] = {
            "primary": outbox.settings.pop("kafka"),
            "backup": {"bootstrap.servers": backup.bootstrap},
        }
        file = tmp_path / "outbox.yaml"
        file.write_text(json.dumps(outbox.settings))
        said = subprocess.run([*COMMAND, "init", "-f", str(file)], capture_output=True, text=True, check=True).stdout
        assert "`airflow-outbox clusters reset backup` lets it count from then on" in said
        scene.start()
        scene.attach("backup", how="reset")
        scene.stash(10)
        wait_until(lambda: outbox.left() == 0)
        assert sorted(int(message.value()) for message in scene.backup.committed()) == list(range(10, 20))
    finally:
        for member in scene.members:
            member.end()


@pytest.mark.long
def test_a_backup_that_nobody_reaches_is_detached_where_only_the_primary_is_required(
    clusters: TwoClusters, backup: EmbeddedKafka
) -> None:
    clusters.outbox.settings |= {"require": "primary", "detach_after": "1s"}
    clusters.limits = {"delivery_timeout": 2, "transaction_timeout": 3}
    member = clusters.start()
    clusters.stash(10)
    wait_until(lambda: clusters.outbox.left() == 0)
    backup.kill()
    clusters.stash(10)
    wait_until(lambda: clusters.outbox.left() == 0)
    assert member.wait_for("detached")["cluster"] == "backup"
    wait_until(lambda: read_verdict(clusters.config).state is State.HEALTHY)
    backup.start()
    clusters.attach("backup")
    clusters.ends_well()
