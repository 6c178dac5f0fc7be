"""How far exactly once gets past one machine, by a model that other benchmarks calibrate.

    ./dev bench harvest … > results.jsonl
    ./dev bench scaling --parts shards > shards.jsonl
    ./dev bench model results.jsonl shards.jsonl

The model knows a record's processor time in the harvester, Postgres and Kafka, as medians of the turns. The part that
has used up its cores bounds the rate. A harvester counts as one core, since Python runs in one thread at a time; more
harvesters are shards. A record of several shards costs more, so their turns count where there are any: those that were
near the servers, with a process each. On the measured machine the three share all cores. The model's result for that
machine is shown beside the measured one, and tells how far to believe the rest.

It does not know disks and networks. At a rate r, Postgres writes r times the bytes of a row to its log twice, at insert
and at delete, and Kafka r times the compressed bytes, once a replica.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

CONTENDER = "exactly once"
PARTS = {"harvester": "cpu_seconds", "postgres": "postgres_cpu_seconds", "kafka": "kafka_cpu_seconds"}
SHARDED_PARTS = {"harvester": "harvester_us", "postgres": "postgres_us", "kafka": "kafka_us"}
CORES = (8, 32)
"""The cores of one machine with all parts."""
SHARDS = (1, 2, 4, 8, 16)
POSTGRES_CORES = (4, 16, 64)
KAFKA_CORES = (4, 16, 64)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core a record, by part; and the rate that was measured with all parts on one machine."""

    shape: str
    seconds: dict[str, float]
    measured: float

    def on_one_machine(self, cores: int) -> float:
        """Records a second."""
        return cores / sum(self.seconds.values())

    def apart(self, *, shards: int, postgres_cores: int, kafka_cores: int) -> tuple[float, str]:
        """Records a second with machines of their own, and which part bounds them."""
        cores = {"harvester": shards, "postgres": postgres_cores, "kafka": kafka_cores}
        bounds = {part: cores[part] / seconds for part, seconds in self.seconds.items()}
        least = min(bounds, key=lambda part: bounds[part])
        return bounds[least], least


def calibrated(lines: Iterable[dict[str, Any]]) -> Iterator[Costs]:
    """The costs by the turns of each shape."""
    turns: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.get("contender") == CONTENDER and line.get("records_per_second") and "round" in line:
            turns.setdefault(line["shape"], []).append(line)
    for shape, found in turns.items():
        seconds = {
            part: statistics.median(turn[name] / turn["records"] for turn in found) for part, name in PARTS.items()
        }
        yield Costs(shape, seconds, statistics.median(turn["records_per_second"] for turn in found))


def calibrated_by_shards(lines: Iterable[dict[str, Any]]) -> Iterator[Costs]:
    """The costs by the turns of several shards, if there are any."""
    turns = [
        line
        for line in lines
        if line.get("measured") == "shards"
        and line.get("records_per_second")
        and line["processes"] > 1
        and "round_trip_ms" not in line
    ]
    if turns:
        seconds = {part: statistics.median(turn[name] for turn in turns) / 1e6 for part, name in SHARDED_PARTS.items()}
        name = f"keys, {turns[0]['shards']} shards"
        yield Costs(name, seconds, statistics.median(turn["records_per_second"] for turn in turns))


def predictions(costs: Costs, *, cores: int) -> Iterator[dict[str, Any]]:
    micros = {f"{part}_us_a_record": round(1e6 * seconds, 2) for part, seconds in costs.seconds.items()}
    yield {
        "model": "one machine",
        "shape": costs.shape,
        "cores": cores,
        **micros,
        "at_most": round(costs.on_one_machine(cores)),
        "measured": round(costs.measured),
        "measured_share": round(costs.measured / costs.on_one_machine(cores), 2),
    }
    for more in CORES:
        rate = costs.on_one_machine(more)
        processes = ceil(rate * costs.seconds["harvester"])
        yield {"model": "one machine", "shape": costs.shape, "cores": more, "at_most": round(rate), "shards": processes}
    for postgres_cores, kafka_cores in zip(POSTGRES_CORES, KAFKA_CORES, strict=True):
        for shards in SHARDS:
            rate, bound = costs.apart(shards=shards, postgres_cores=postgres_cores, kafka_cores=kafka_cores)
            yield {
                "model": "machines of their own",
                "shape": costs.shape,
                "shards": shards,
                "postgres_cores": postgres_cores,
                "kafka_cores": kafka_cores,
                "at_most": round(rate),
                "bound": bound,
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev bench model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="lines of other benchmarks")
    given = parser.parse_args()
    lines = [json.loads(line) for file in given.files for line in file.read_text().splitlines() if line.startswith("{")]
    cores = next((line["surroundings"]["cores"] for line in lines if "surroundings" in line), None)
    found = [*calibrated(lines), *calibrated_by_shards(lines)]
    if cores is None or not found:
        parser.error("the files hold no turns. Run ./dev bench harvest, and keep what it prints")
    for costs in found:
        for line in predictions(costs, cores=cores):
            print(json.dumps({"benchmark": "model", **line}), flush=True)


if __name__ == "__main__":
    main()
