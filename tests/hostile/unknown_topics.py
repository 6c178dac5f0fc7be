"""Many topics that are not there."""

from __future__ import annotations

UNKNOWN_TOPICS = 10_000
A_NAME_EACH = f"""INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT {{topic}} || '-nowhere-' || number, 'h', 'v', '{{{{}}}}', '{{{{}}}}'
FROM generate_series(1, {UNKNOWN_TOPICS}) AS number"""
"""A record for each; {topic} is for the innocents'."""
