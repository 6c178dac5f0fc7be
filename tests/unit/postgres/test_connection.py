"""A data source that can't be read is never quoted: what could not be read may be a password."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import DataSourceError
from airflow_outbox.postgres.connection import connect, parsed

SECRET = "hunter2"


@pytest.mark.parametrize(
    "data_source",
    [
        f"host=h password=two {SECRET} dbname=d",
        f"host=h password='{SECRET}",
        f"host=h password=two {SECRET}=words",
        f"postgresql://app:two%{SECRET}@h/d",
        f"postgresql://app:at@{SECRET}@h/d",
        f"postgresql://app:slash/{SECRET}@h/d",
        f"postgresql://app:{SECRET}/slash@h/d",
        f"postgresql://app:question?{SECRET}@h/d",
        f"postgresql://app:{SECRET}#hash@h/d",
        f"postgres://[{SECRET}/d",
    ],
)
def test_no_part_of_it_is_shown(data_source: str) -> None:
    with pytest.raises(DataSourceError, match="not a connection string that Postgres understands") as caught:
        connect(data_source, purpose="test")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("data_source", "host", "password"),
    [
        ("host=h password='two words'", "h", "two words"),
        ("postgresql://app:a%40b%2Fc@h:5432/d", "h", "a@b/c"),
        ("postgresql://app:a%40b%2Fc@h,other:5433/d?connect_timeout=3", "h,other", "a@b/c"),
        ("postgresql://app@%2Ftmp%2Fsockets/d", "/tmp/sockets", None),
        ("postgresql:///d?host=h&user=a@b", "h", None),
        ("postgresql://app:x@[::1]:5432/d", "::1", "x"),
        ("postgresql://h", "h", None),
        ("postgresql://", None, None),
        ("", None, None),
    ],
)
def test_what_can_be_read_is(data_source: str, host: str | None, password: str | None) -> None:
    found = parsed(data_source)
    assert (found.get("host"), found.get("password")) == (host, password)
