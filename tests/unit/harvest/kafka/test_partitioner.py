"""Each record's partition, chosen once for all clusters."""

from __future__ import annotations

from airflow_outbox.harvest.kafka.partitioner import Partitioner, Placing
from airflow_outbox.values.pages import OutboxRow

COUNTS = {"t": 7, "u": 3}


def row(number: int, topic: str, key: str | bytes, partition: int | None = None) -> OutboxRow:
    return number, topic, key, "v", [], [], partition, 1, None


def test_records_are_placed_where_the_producer_would_put_them() -> None:
    rows = [row(1, "t", "k1"), row(2, "u", b"k1"), row(3, "t", "k2", 5)]
    for partitioner in ("murmur2_random", "consistent_random"):
        chosen = Partitioner(partitioner).choose(rows, COUNTS)
        assert Placing(partitioner).choose(rows, COUNTS) == chosen
        same = [row(number, "t", f"k{number}") for number in range(20)]
        counts = {"t": COUNTS["t"]}
        assert Placing(partitioner).choose(same, counts) == Partitioner(partitioner).choose(same, counts)
    assert Placing("random").choose(rows, COUNTS) is None


def test_records_without_a_key_go_into_the_same_partition_each_time() -> None:
    rows = [row(number, "t", "") for number in range(20)]
    first, second = (Placing("murmur2_random").choose(rows, {"t": 7}) for _ in range(2))
    assert first == second == [number % 7 for number in range(20)]


def test_partitions_that_are_chosen_already_stay() -> None:
    rows = [row(1, "t", "", 6), row(2, "u", "k", 0)]
    assert Partitioner("murmur2_random").choose(rows, COUNTS) == [6, 0]
