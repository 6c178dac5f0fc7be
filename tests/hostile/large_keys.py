"""Records with large keys, in outboxes whose keys are `text` or `bytea`."""

from __future__ import annotations

INTO = "INSERT INTO outbox (kafka_topic, kafka_key)"
INCOMPRESSIBLE = "(SELECT string_agg(md5(number || '-' || part), '') FROM generate_series(1, 320) AS part)"
ABOVE_AN_INDEX_ROW = f"{INTO} SELECT 'no such topic', {{key}} FROM generate_series(1, 20) AS number", INCOMPRESSIBLE
ABOVE_ALL_RECORDS = (
    f"{INTO} SELECT {{{{topic}}}}, {{key}} FROM unnest(ARRAY(SELECT generate_series(1, 51)) || 1 || 51) AS number",
    "repeat('h', CASE number WHEN 51 THEN 30000000 ELSE 5000000 END) || number",
)
ORDINARY = (
    f"{INTO} SELECT 'to-be-made-' || {{{{topic}}}}, {{key}} FROM generate_series(1, 300) AS number",
    "repeat('h', 900000) || number",
)
PARKED = "SELECT count(*), count(DISTINCT kafka_key), min(cause) FROM outbox_parked"


def written(key_type: str, statement: tuple[str, str]) -> str:
    template, key = statement
    return template.format(key=f"convert_to({key}, 'UTF8')" if key_type == "bytea" else key)
