"""Backlogs that Postgres makes by itself, so that ten million rows take minutes and not hours."""

from __future__ import annotations

import psycopg

from benchmarks.peers.rows import HEADER, OUTBOX, Layout, Shape

_LOADED_TOGETHER = 100_000
_FILLING_CHARACTERS = 4000
_LONGEST_VALUE = 1000
_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT now(), %(topic)s || CASE WHEN %(topics)s > 1 THEN '-' || number %% %(topics)s ELSE '' END,
       'customer-' || number %% %(keys)s,
       '{"id":' || number || ',"note":"'
           || substr(%(filling)s, 1 + (number * 7919 %% %(places)s)::integer, %(length)s) || '"}',
       ARRAY[%(header)s], ARRAY[%(header_value)s]
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
ORDER BY number
"""


class Generated(Layout):
    """Our table, filled by Postgres in transactions of 100,000 rows: keys, headers and values as in other rows."""

    def load(self, dsn: str, shape: Shape, topic: str, rows: int, *, topics: int = 1) -> None:
        """Fill the table, and leave nothing for background workers to do. With `topics` above 1 the rows take turns:
        `topic`-0, `topic`-1, …
        """
        length = min(shape.value_bytes, _LONGEST_VALUE) - len('{"id":1000000,"note":""}')
        text = Shape("filling", keys=1, value_bytes=_FILLING_CHARACTERS + 100).value(0)
        filling = text[20 : 20 + _FILLING_CHARACTERS]
        header, header_value = HEADER
        values = {
            "topic": topic,
            "topics": topics,
            "keys": shape.keys,
            "filling": filling,
            "places": _FILLING_CHARACTERS - length,
            "length": length,
            "header": header,
            "header_value": header_value,
        }
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for first in range(0, rows, _LOADED_TOGETHER):
                last = min(first + _LOADED_TOGETHER, rows) - 1
                connection.execute(_INSERT, {**values, "first": first, "last": last})
            connection.execute("SET synchronous_commit = on")
            connection.execute("VACUUM (ANALYZE) outbox")
            connection.execute("CHECKPOINT")


GENERATED = Generated(OUTBOX.table, OUTBOX.columns)
