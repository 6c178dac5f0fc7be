"""How much memory an audit takes: not more for more records, well published or not."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer
from support.archiving import Archived, counts

MOST_MB = 170
"""About 80 of these are Python and its libraries. To hold 500,000 records in memory takes more than the rest."""

# The high-water mark of this process alone: what getrusage tells is its parent's, too.
COMMAND = """
import sys
from airflow_outbox.cli import main
try:
    main()
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""
FILL = """
INSERT INTO archive (id, create_time, kafka_topic, kafka_key, kafka_value,
                     kafka_header_keys, kafka_header_values, transaction_id)
SELECT number, now(), '{topic}', 'key-' || number % {keys}, repeat('x', 90) || number,
       '{{}}', '{{}}', (number / 10 + 1000)::text::xid8
FROM generate_series(0, {records} - 1) AS number
"""


def publish(archived: Archived, records: int, *, keys: int) -> None:
    """All of it but every 1000th record, and some twice."""
    producer = Producer(
        {"bootstrap.servers": archived.outbox.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    )
    padding = "x" * 90
    for number in range(records):
        key = number % keys
        for _ in range({7: 0, 9: 2}.get(number % 1000, 1)):
            while len(producer) > 400_000:
                producer.poll(0.1)
            producer.produce(archived.topic, f"{padding}{number}", f"key-{key}", key % 4)
        producer.poll(0)
    assert producer.flush(120) == 0


@pytest.mark.long
@pytest.mark.parametrize("keys", [1, 999])
def test_memory_is_bounded(archived: Archived, keys: int, request: pytest.FixtureRequest) -> None:
    records = 10_000_000 if request.config.getoption("--faults") == "long" else 500_000
    archived.execute(FILL.format(topic=archived.topic, records=records, keys=keys))
    publish(archived, records, keys=keys)
    command = ["audit", "-f", str(archived.file), "--table", "archive", "--output", "json"]
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", COMMAND, *command], capture_output=True, text=True, timeout=1800)
    report = json.loads(done.stdout)
    share = records // 1000
    assert counts(report) == {"missing": share, "doubled": share, "torn": share}
    peak = int(done.stderr.splitlines()[-1]) / 1024
    print(f"{records} records under {keys} keys: {peak:.0f} MB at most, {time.monotonic() - begun:.0f} s")
    assert peak < MOST_MB
