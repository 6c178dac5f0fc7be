"""The options of a write, as people give them."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_outbox.errors import ConfigurationError, InvalidNameError
from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.spark.options import read_options

URL = {"url": "postgresql://app@db/shop"}
LEDGER = "airflow-outbox.0b6d5cf4-9d0b-4c6c-8f3b-2f6a8e1f7c55.ledger"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"url": "postgresql://app:pw@db:5433/shop"}, {"user": "app", "password": "pw", "port": "5433"}),
        ({"url": "host=db dbname=shop", "user": "app", "password": "p w"}, {"user": "app", "password": "p w"}),
        (
            {"url": "jdbc:postgresql://db/shop?user=app&reWriteBatchedInserts=true&sslmode=require"},
            {"user": "app", "sslmode": "require"},
        ),
    ],
)
def test_a_url_in_three_forms(given: dict[str, str], expected: dict[str, str]) -> None:
    found = conninfo_to_dict(read_options(given).data_source)
    assert found == {"host": "db", "dbname": "shop"} | expected


def test_names_have_no_case_and_values_are_read() -> None:
    options = read_options(
        {**URL, "DBTABLE": "shop.events", "txnappid": "job", "txnVERSION": "7", "ORDERBY": "a"}
        | {"headers": '{"a": "1", "b": "2"}', "partition": "0", "inlinebytes": "0"}
    )
    assert options.order_by == ("a",)
    assert str(options.outbox) == '"shop"."events"'
    assert options.commit_id == CommitId("job", 7)
    assert options.headers == (("a", "1"), ("b", "2"))
    assert (options.partition, options.inline_bytes, options.staging_ttl_seconds) == (0, 0, 86_400)
    assert read_options({**URL, "stagingttlseconds": "1"}).staging_ttl_seconds == 1


def test_a_trace_context() -> None:
    context = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=x"}
    assert read_options(URL).trace_headers == ()
    assert read_options({**URL, "TraceParent": context["traceparent"]}).trace_headers == (
        ("traceparent", context["traceparent"]),
    )
    assert read_options({**URL, **context}).trace_headers == tuple(context.items())


@pytest.mark.parametrize(
    ("text", "columns"),
    [("a", ("a",)), (" a , b ", ("a", "b")), ('"a, ""b", `c``d`', ('a, "b', "c`d")), ("a b.c", ("a b.c",)), ("", ())],
)
def test_columns_to_order_by(text: str, columns: tuple[str, ...]) -> None:
    assert read_options({**URL, "orderBy": text}).order_by == columns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option url is missing"),
        ({"url": "secret nonsense"}, "option url is not a connection string"),
        ({**URL, "ordrBy": "a"}, "option ordrBy: unknown; did you mean orderBy"),
        ({**URL, "zzz": "a"}, "option zzz: unknown. The options are url, user"),
        ({**URL, "txnVersion": "1"}, "option txnVersion needs txnAppId"),
        ({**URL, "txnAppId": ""}, "option txnAppId is empty"),
        ({**URL, "format": "cloudevent"}, "option format is 'cloudevent'. Give cloudevents"),
        ({**URL, "txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1'. Give a whole number"),
        ({**URL, "stagingTtlSeconds": "0"}, "option stagingTtlSeconds is '0'. Give a whole number, 1 or more"),
        ({**URL, "inlineBytes": "-1"}, "option inlineBytes is '-1'. Give a whole number, 0 or more"),
        ({**URL, "partition": "x"}, "option partition is 'x'. Give a whole number"),
        ({**URL, "headers": '["a"]'}, "option headers: give a JSON object of strings"),
        ({**URL, "headers": '{"a": 1}'}, "option headers: give a JSON object of strings"),
        ({**URL, "orderBy": 'a, "b'}, "option orderBy is 'a, \"b'. Give names of columns"),
        ({**URL, "orderBy": "a,,b"}, "option orderBy is 'a,,b'. Give names of columns"),
        ({**URL, "topic": "no topic"}, "option topic: 'no topic' is not a legal name"),
        ({**URL, "traceparent": "abc"}, "option traceparent is 'abc', which is no trace context"),
        ({**URL, "tracestate": "vendor=x"}, "option tracestate needs traceparent"),
        ({**URL, "topic": "__own"}, "option topic: '__own' is not a legal name"),
        ({**URL, "topic": LEDGER}, f"option topic: '{LEDGER}' is not a legal name"),
    ],
)
def test_what_is_not_right_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        read_options(given)
    assert str(failure.value).startswith(message)
    assert "secret" not in str(failure.value)


def test_an_outbox_that_is_no_name() -> None:
    with pytest.raises(InvalidNameError):
        read_options({**URL, "dbtable": "a.b.c"})
