"""Two real clusters, of which one lacks records: it is caught up beside harvesting, accepted, promoted, or refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from faults.histories import errors_of
from faults.regions import Region
from faults.two_clusters import TwoClusters
from support.harvesting import COMMAND, PARTITIONS, PATIENCE, make_topic, wait_until
from support.sharding import config_of

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.clusters import promote
from airflow_outbox.operate.reshard import prepare, reshard
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.tickets.published import ticket_status
from airflow_outbox.values.membership import Membership

_MANY = 2_000
_SLOW = 0.2
"""Seconds that everything takes to and from the cluster that is caught up: minutes for so many batches."""


@pytest.fixture(scope="module")
def region(server_folder: Path, kafka_classpath: str) -> Iterator[Region]:
    region = Region(server_folder / "owed", kafka_classpath)
    yield region
    region.close()


@pytest.fixture
def backup(region: Region) -> EmbeddedKafka:
    """The second cluster, to which a proxy leads, too."""
    return region.kafka


def numbers(scene: TwoClusters) -> tuple[list[int], list[int]]:
    """What each cluster has, sorted. Each key's are in order there."""
    found = []
    for cluster in (scene.outbox, scene.backup):
        published = cluster.published()
        for key in {key for key, _ in published}:
            own = [number for other, number in published if other == key]
            assert own == sorted(own)
        found.append(sorted(number for _, number in published))
    return found[0], found[1]


def membership(scene: TwoClusters) -> Membership:
    with psycopg.connect(scene.outbox.database) as connection:
        return read_membership(connection, scene.config.name)


def test_harvesting_goes_on_while_a_cluster_is_caught_up(clusters: TwoClusters, region: Region) -> None:
    """Everything to and from that cluster is slow until harvesting has been seen to go on."""
    clusters.outbox.settings["clusters"]["backup"] = {"bootstrap.servers": f"{LOOPBACK}:{region.proxy.port}"}
    member = clusters.start()
    member.wait_for("took_over")
    clusters.detach("backup")
    clusters.stash(_MANY)
    wait_until(lambda: clusters.outbox.left() == 0)
    region.proxy.delay(_SLOW)
    harvested, before = 0, clusters.backup.written()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as in_the_end:
        in_the_end.callback(region.proxy.heal)  # if it fails before: the attempt would not end
        attaching = pool.submit(clusters.attach, "backup")
        while not attaching.done():
            has_begun = clusters.backup.written() > before
            views = clusters.outbox.query("SELECT view FROM outbox_shard")
            clusters.stash(20)
            wait_until(lambda: clusters.outbox.left() == 0)
            is_owed = membership(clusters).parts["backup"] == "owed"
            harvested += has_begun and is_owed and views == clusters.outbox.query("SELECT view FROM outbox_shard")
            if harvested >= 2:
                region.proxy.heal()
        attaching.result()
    assert harvested >= 2, "under the same view, while the cluster does not count yet"
    clusters.stash(20)
    clusters.ends_well()


def test_an_owed_cluster_is_promoted_and_the_old_primary_accepted(
    swapped: TwoClusters, backup: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost primary has a batch that Postgres did not keep for others: its records go out in another one there."""
    swapped.stash(30)
    first = swapped.start()
    wait_until(lambda: swapped.outbox.left() == 0)
    swapped.detach("backup")
    swapped.stash(30)
    wait_until(lambda: swapped.outbox.left() == 0)
    first.end()
    swapped.dies(swapped.start(kill="keep"))
    backup.kill()
    assert promote(swapped.config, "backup").parts == {"backup": "primary", "primary": "owed"}
    swapped.start()
    wait_until(lambda: swapped.outbox.left() == 0)
    backup.start()
    with pytest.raises(OutboxError, match=r"primary was not attached: batch \d+ is .*--accept"):
        swapped.attach("primary")
    swapped.is_harvested()
    swapped.attach("primary", how="accept")
    assert membership(swapped).parts == {"backup": "primary", "primary": "backup"}
    swapped.is_harvested()
    everything = list(range(swapped.stashed))
    assert numbers(swapped) == (everything, everything)
    [(skipped,)] = swapped.outbox.query("SELECT skipped FROM outbox_ledger WHERE cluster = 'primary'")
    assert skipped["ids"], "it is on record what it does not get"
    # A planned promotion, with both up, changes nothing of that.
    monkeypatch.setattr("airflow_outbox.operate.clusters._REACHED_WITHIN", PATIENCE)
    promote(swapped.config, "primary")
    swapped.is_harvested()
    everything = list(range(swapped.stashed))
    assert numbers(swapped) == (everything, everything)


@pytest.mark.long
def test_a_cluster_that_would_lack_what_is_purged_is_promoted_only_if_the_loss_is_accepted(
    swapped: TwoClusters, backup: EmbeddedKafka
) -> None:
    swapped.start().wait_for("took_over")
    swapped.stash(30)
    wait_until(lambda: swapped.outbox.left() == 0)
    swapped.detach("backup")
    for _ in range(3):
        swapped.stash(30)
        wait_until(lambda: swapped.outbox.left() == 0)
    [(lost,)] = swapped.outbox.query("SELECT max(batch) - 1 FROM outbox_owed")
    [(held,)] = swapped.outbox.query(f"SELECT count(*) FROM outbox_owed_rows WHERE batch = {lost}")
    for table in ("outbox_owed", "outbox_owed_rows"):  # as limits.owed_retention would
        swapped.outbox.query(f"DELETE FROM {table} WHERE batch = {lost}")
    with pytest.raises(ConfigurationError, match=r"lacks records .* Attach it first"):
        promote(swapped.config, "backup")
    backup.kill()
    with pytest.raises(OutboxError, match=f"it lacks batch {lost}, which is not kept any more.*--accept-loss"):
        promote(swapped.config, "backup")
    after = promote(swapped.config, "backup", accept_loss=True)
    told = f"promoted, but it lacks batch {lost}"
    assert [each.reason for each in after.clusters if each.name == "backup"] == [told]
    with psycopg.connect(swapped.outbox.database) as connection:
        [entry] = read_trail(connection, swapped.config.name, limit=1)
    assert (entry.action, entry.matched, entry.reason) == ("promote", "backup", told)
    swapped.is_harvested()
    backup.start()
    swapped.attach("primary", how="accept")
    swapped.is_harvested()
    on_lost, on_promoted = numbers(swapped)
    assert on_lost == list(range(swapped.stashed))
    missing = {*on_lost} - {*on_promoted}
    assert len(missing) == held > 0
    assert missing <= {*range(30, 120)}, "only what that batch had"
    assert len(on_promoted) == len({*on_promoted})


@pytest.mark.parametrize("case", [pytest.param("older", marks=pytest.mark.long), "foreign", "wiped"])
def test_a_cluster_that_is_another_one_is_refused_with_what_to_do(clusters: TwoClusters, case: str) -> None:
    clusters.start().wait_for("took_over")
    clusters.stash(30)
    wait_until(lambda: clusters.outbox.left() == 0)
    clusters.detach("backup")
    clusters.stash(30)
    wait_until(lambda: clusters.outbox.left() == 0)
    with psycopg.connect(clusters.outbox.database) as connection:
        identity = OutboxTable(connection, clusters.config.name).identity()
    ledger = KafkaNames.of(clusters.config, identity.outbox_id).ledger_topic
    kafka = {"bootstrap.servers": clusters.backup.bootstrap}
    if case == "older":  # Postgres knows more of it than it has
        clusters.outbox.query(
            "UPDATE outbox_ledger SET witnessed_batch = witnessed_batch + 900 WHERE cluster = 'backup'"
        )
        says = r"the ledger ends with batch \d+, but batch 9\d\d was in it: the cluster has lost records"
    elif case == "foreign":
        head = head_of(kafka, ledger)
        _produce(kafka, ledger, {**head, "outbox_id": "00000000-0000-0000-0000-000000000009"})
        says = "the ledger belongs to outbox 00000000-0000-0000-0000-000000000009"
    else:
        admin = AdminClient(kafka)
        for future in admin.delete_topics([ledger]).values():
            future.result()
        make_topic(kafka, ledger, partitions=1)
        says = r"the ledger('s topic was deleted and recreated| ends at offset 0)"
    with pytest.raises(OutboxError, match=says) as refusal:
        clusters.attach("backup")
    assert case == "foreign" or "clusters reset NAME" in str(refusal.value)
    clusters.is_harvested()
    assert membership(clusters).parts["backup"] == "owed"


def test_a_ledger_of_a_later_membership_halts(clusters: TwoClusters) -> None:
    """The database was restored to before its clusters were changed."""
    first = clusters.start()
    clusters.detach("backup")
    clusters.is_harvested()
    first.end()
    clusters.outbox.query("UPDATE outbox_state SET membership = membership - 1")
    second = clusters.start()
    says = "when the outbox's clusters had been changed 2 times, but the database knows of 1"
    wait_until(lambda: any(says in error for error in errors_of(second)), doing=lambda: str(second.events))
    wait_until(lambda: clusters.outbox.query("SELECT halted IS NOT NULL FROM outbox_state") == [(True,)])


def test_a_cluster_of_several_shards_is_detached_and_attached_and_resharded(clusters: TwoClusters) -> None:
    outbox = clusters.outbox
    prepare(config_of(outbox), shards=2)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, clusters.config.name, shards=2)
    clusters.start().wait_for("took_over")
    clusters.is_harvested()
    clusters.detach("backup")
    clusters.is_harvested()
    with pytest.raises(ConfigurationError, match=r"cluster backup does not count.* Attach it first"):
        prepare(config_of(outbox), shards=3)
    clusters.attach("backup")
    clusters.is_harvested()
    assert reshard(config_of(outbox), shards=3, patience=60, tell=lambda _: None).shards == 3
    clusters.is_harvested()
    everything = list(range(clusters.stashed))
    assert numbers(clusters) == (everything, everything)


def test_a_cluster_of_several_shards_starts_from_now_when_its_topics_are_made_again(
    clusters: TwoClusters, tmp_path: Path
) -> None:
    """Also for shards that the outbox does not have now."""
    outbox = clusters.outbox
    prepare(config_of(outbox), shards=3)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, clusters.config.name, shards=3)
        identity = OutboxTable(connection, clusters.config.name).identity()
    clusters.start().wait_for("took_over")
    clusters.is_harvested()
    assert reshard(config_of(outbox), shards=2, patience=60, tell=lambda _: None).shards == 2
    clusters.detach("backup")
    clusters.is_harvested()
    early = clusters.stashed
    kafka = {"bootstrap.servers": clusters.backup.bootstrap}
    own = [KafkaNames.of(clusters.config, identity.outbox_id).ledger_topic, outbox.topic]
    admin = AdminClient(kafka)
    for future in admin.delete_topics(own).values():
        future.result()
    make_topic(kafka, outbox.topic, partitions=PARTITIONS)
    file = tmp_path / "outbox.yaml"
    file.write_text(json.dumps(outbox.settings))
    subprocess.run([*COMMAND, "init", "-f", str(file)], capture_output=True, text=True, check=True)
    clusters.attach("backup", how="reset")
    clusters.is_harvested()
    assert reshard(config_of(outbox), shards=3, patience=60, tell=lambda _: None).shards == 3
    clusters.is_harvested()
    on_primary, on_backup = numbers(clusters)
    assert on_primary == list(range(clusters.stashed))
    assert on_backup == list(range(early, clusters.stashed))
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ticket = stash(connection, [OutboxRecord(outbox.topic, "k", "-1")])
        wait_until(lambda: ticket_status(connection, ticket).clusters == ("backup", "primary"))


def head_of(kafka: dict[str, str], ledger: str) -> dict[str, object]:
    """The newest head in a ledger."""
    consumer = Consumer({**kafka, "group.id": "unused", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(ledger, 0, 0)])
        head: dict[str, object] = {}
        while (message := consumer.poll(PATIENCE)) is not None and message.error() is None:
            if message.key() == b"head":
                head = json.loads(message.value())
        return head
    finally:
        consumer.close()


def _produce(kafka: dict[str, str], ledger: str, head: dict[str, object]) -> None:
    producer = Producer(kafka)
    producer.produce(ledger, key="head", value=json.dumps(head), partition=0)
    assert producer.flush(PATIENCE) == 0
