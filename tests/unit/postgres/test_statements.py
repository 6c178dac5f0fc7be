"""Statements as they are sent: what psycopg would make of their placeholders, made once."""

from __future__ import annotations

from typing import Any, cast

from psycopg import sql

from airflow_outbox.postgres.statements import FrequentStatement


def test_a_frequent_statements_placeholders_are_numbered_by_name() -> None:
    text = sql.SQL("SELECT {} FROM t WHERE id > %(after)s AND n = %(n)s AND n %% 2 = 0 AND m <> %(after)s")
    statement = FrequentStatement(cast("Any", None), text.format(sql.SQL("'%%(n)s'")))
    assert statement.text == b"SELECT '%(n)s' FROM t WHERE id > $1 AND n = $2 AND n % 2 = 0 AND m <> $1"
    assert statement.names == ("after", "n")
