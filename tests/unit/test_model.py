"""The model of the benchmarks: whatever has used up its cores bounds the rate."""

from __future__ import annotations

import pytest

from benchmarks.model import calibrated, predictions

TURN = {
    "contender": "exactly once",
    "shape": "keys",
    "records": 100_000,
    "postgres_cpu_seconds": 0.1,
    "kafka_cpu_seconds": 0.2,
}


def turns() -> list[dict[str, object]]:
    seconds = [0.5, 0.4, 3.0]
    rates = [200_000, 250_000, 30_000]
    return [
        {**TURN, "round": number, "cpu_seconds": used, "records_per_second": rate}
        for number, (used, rate) in enumerate(zip(seconds, rates, strict=True))
    ]


def test_costs_are_medians_of_turns_and_refused_ones_count_for_nothing() -> None:
    refused = {**TURN, "round": 9, "cpu_seconds": 99.0, "records_per_second": None}
    other = {**TURN, "round": 1, "contender": "bare loop", "cpu_seconds": 0.1, "records_per_second": 10}
    [costs] = calibrated([*turns(), refused, other, {"surroundings": {"cores": 2}}])
    assert costs.seconds == pytest.approx({"harvester": 5e-6, "postgres": 1e-6, "kafka": 2e-6})
    assert costs.measured == 200_000
    assert costs.on_one_machine(2) == pytest.approx(250_000)


def test_what_has_no_cores_left_bounds_the_rate() -> None:
    [costs] = calibrated(turns())
    assert costs.apart(shards=1, postgres_cores=4, kafka_cores=4) == (pytest.approx(200_000), "harvester")
    assert costs.apart(shards=100, postgres_cores=64, kafka_cores=4) == (pytest.approx(2_000_000), "kafka")
    assert costs.apart(shards=100, postgres_cores=1, kafka_cores=4) == (pytest.approx(1_000_000), "postgres")
    lines = list(predictions(costs, cores=2))
    assert lines[0]["measured_share"] == 0.8
    assert [line["at_most"] for line in lines[1:6]] == [1_000_000, 4_000_000, 200_000, 400_000, 800_000]
