"""Commit small transactions at a rate, in a process of its own, as an application would; one line of JSON at the end.

Transactions are due at fixed moments, however long the ones before took. Each is one prepared INSERT. The line has, for
each, the number of its first row and the moments before it was sent and when it was committed, by `time.monotonic()`, a
clock that all processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import time

import psycopg

from benchmarks.peers.rows import LAYOUTS, SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("table", choices=LAYOUTS)
    parser.add_argument("topic")
    parser.add_argument("--rate", type=float, required=True, help="rows a second")
    parser.add_argument("--transaction", type=int, required=True, help="rows a transaction")
    parser.add_argument("--rows", type=int, required=True)
    given = parser.parse_args()
    layout, shape = LAYOUTS[given.table], SHAPES["keys"]
    statement = layout.insert(given.transaction).encode()
    transactions: list[tuple[int, float, float]] = []
    with psycopg.connect(given.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        begun = time.monotonic()
        for first in range(0, given.rows, given.transaction):
            numbers = range(first, first + given.transaction)
            row_values = [text for number in numbers for text in layout.values(shape, given.topic, number)]
            time.sleep(max(0.0, begun + first / given.rate - time.monotonic()))
            sent = time.monotonic()
            cursor.execute(statement, row_values, prepare=True)
            transactions.append((first, sent, time.monotonic()))
    print(json.dumps(transactions))


if __name__ == "__main__":
    main()
