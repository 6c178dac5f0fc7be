"""Debezium outbox tables, connectors over them, and rows: what the comparison with a real Debezium goes through.

Each case has a table of its own, with its own options of the event router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
BINARY = "io.debezium.converters.BinaryDataConverter"
PLAIN_JSON = {"value.converter": JSON, "value.converter.schemas.enable": "false"}
PARTITIONS = 3

_USUAL = (
    "(id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type text,"
    " payload jsonb)"
)
_TEXTS = "(id int PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, payload text)"
_ONE = "00000000-0000-0000-0000-00000000000{}"


@dataclass(frozen=True, slots=True)
class Case:
    """A table, its router's options, and statements, each a transaction of its own, that insert into `{table}`."""

    name: str
    columns: str
    statements: Sequence[str | tuple[str, Sequence[Any]]]
    topics: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    types: str = ""
    value_type: str = "text"

    @property
    def table(self) -> str:
        return f"events_{self.name}"

    def connector(self) -> dict[str, str]:
        """The connector's settings, without those that say where the database is."""
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "slot.name": f"slot_{self.name}",
            "publication.name": f"published_{self.name}",
            "publication.autocreate.mode": "disabled",
            "table.include.list": f"public.{self.table}",
            "snapshot.mode": "no_data",
            "poll.interval.ms": "50",
            "extended.headers.enabled": "false",
            "key.converter": STRING,
            "value.converter": STRING,
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            **{f"transforms.outbox.{name}": value for name, value in self.options.items()},
            **self.settings,
        }


def _texts(*payloads: str | None, topic: str) -> list[tuple[str, Sequence[Any]]]:
    insert = "INSERT INTO {table} (id, aggregatetype, aggregateid, payload) VALUES (%s, %s, %s, %s)"
    return [(insert, (n, topic, f"k{n % 3}", payload)) for n, payload in enumerate(payloads)]


_STRANGE = 'a "b" \\ / \x01\x0b\x0e\x1b\x1f\x7f\b\t\n\f\r é € 𝄞 \u2028 \\u000b'
_KINDS = (
    "n int2, i int4, l int8, yes boolean, v varchar(10), c char(5), u uuid, d date, t timestamp, t3 timestamp(3), "
    "z timestamptz, e {table}_e, b bytea, j json"
)
_KINDS_NAMES = ["n", "i", "l", "yes", "v", "c", "u", "d", "t", "t3", "z", "e", "b", "j"]
_KINDS_TABLE = (
    f"(id bigint PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, payload text, {_KINDS})"
)
_KINDS_TYPES = "CREATE TYPE {table}_e AS ENUM ('new', 'old')"
_KINDS_ROWS = [
    "INSERT INTO {table} VALUES (9007199254740993, 'TOPIC', 'k', 'p', -7, 2147483647, 9223372036854775807, true, 'ä', "
    f"'ab', '{_ONE.format(7)}', '2024-02-29', '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56.987', "
    "'2024-02-29 12:34:56.12+02', 'old', '\\x00ff10', '{{\"b\": 1,  \"a\":2}}')",
    "INSERT INTO {table} VALUES (2, 'TOPIC', 'k', 'p', 0, 0, 0, false, '', '', NULL, '1969-12-31', "
    "'1969-12-31 23:59:59.5', '1969-12-31 23:59:59.5', '2024-01-01 00:00:00+00', 'new', '', '[]')",
    "INSERT INTO {table} (id, aggregatetype, aggregateid) VALUES (3, 'TOPIC', 'k')",
]


def _kinds(topic: str) -> list[str]:
    return [row.replace("TOPIC", topic) for row in _KINDS_ROWS]


_DOCUMENTS = (
    '{"b": 1, "a": {"c": [1, 2], "d": null, "e": [], "f": {}}, "s": "x\\u000by\\u00e9\\/", "t": true}',
    '{"list": [{"x": 1, "y": "q"}, {"x": 2, "y": "r"}], "n": [null, "x"], "nested": [[1], [2, 3]]}',
    '{"o": [{"x": 1}, null]}',
    '{"i": 2147483647, "l": 2147483648, "neg": -5, "zero": -0, "big": 9223372036854775807}',
    '{"a": 1.0, "b": 0.5, "c": 1e2, "d": 1.5E10, "e": 12345678.5, "f": 0.00012, "g": 1e-7, "h": 1234567.0, "i": 0.0}',
    '{"a": -0.001, "b": -1e25, "c": 3.141592653589793, "d": 1e21, "e": 123456789012345680000.5, "f": 10000000.0}',
    '{"mixed": [1, "x"]}',
    '{"mixed": [1, 2.5]}',
    '{"mixed": [1, 3000000000]}',
    '{"nulls": [null]}',
    '{"empty": [[]]}',
    "plain text",
    ' {"a": 1}',
    '"string"',
    "17",
    '{"broken": ',
    '{"same": 1, "other": 2, "same": 3}',
    "",
    None,
    "{}",
    '{"a": {"b": {"c": {"d": [{"e": [{"f": 1}]}]}}}}',
)

_ARRAYS = ('{"before": 1}', "[]", "[broken", "[", '{"after": 1}')
"""Other lists, and integers of more than eight bytes, stop Debezium 3.7."""
_DEFAULTS_TABLE = (
    "(id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,"
    " aggregateid text NOT NULL DEFAULT md5('k'), payload jsonb DEFAULT jsonb_build_object(), n bigserial,"
    " at timestamptz NOT NULL DEFAULT now(), d date DEFAULT (now() AT TIME ZONE 'utc')::date,"
    " t timestamp DEFAULT (now() AT TIME ZONE 'utc'), t3 timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,"
    " i int DEFAULT length('ab'), yes boolean DEFAULT pg_is_in_recovery(), z timestamptz DEFAULT CURRENT_TIMESTAMP,"
    " today date DEFAULT CURRENT_DATE, local timestamp DEFAULT LOCALTIMESTAMP, k varchar(9) DEFAULT lower('K'),"
    " u uuid DEFAULT gen_random_uuid(), j json DEFAULT json_build_object())"
)
_DEFAULTS_NAMES = ("n", "at", "d", "t", "t3", "i", "yes", "z", "today", "local", "k", "u", "j")
_DECIMALS_TABLE = (
    "(id int PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, payload text,"
    " price numeric(10,2) NOT NULL, small numeric(18,9), whole numeric(18), tiny numeric(3,3))"
)
_DECIMALS_ROWS = ";".join(
    f"INSERT INTO {{table}} VALUES ({number}, 'TOPIC', 'k', 'p', {price}, {small}, {whole}, {tiny})"
    for number, (price, small, whole, tiny) in enumerate(
        [
            ("0", "0", "0", "0"),
            ("1.5", "0.000000123", "127", "0.128"),
            ("-1.28", "-0.000000001", "-128", "-0.129"),
            ("12345678.9", "123456789.000000001", "999999999999999999", "0.001"),
            ("-99999999.99", "0.000001", "-999999999999999999", "NULL"),
            ("2.55", "0.00000099", "32768", "-0.001"),
            ("2.56", "NULL", "NULL", "0.255"),
            ("-3.27", "-0.001", "-32769", "0.1"),
        ]
    )
)

CASES = (
    Case(
        "usual",
        _USUAL,
        [
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(1)}', 'order', '1', 'Created', '{{\"b\":1, \"a\": \"ä\"}}')",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(2)}', 'order', '2', 'OrderPaid', NULL), "
            f"('{_ONE.format(3)}', 'customer', '1', NULL, '[]')",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(4)}', 'order', '1', 'x', '\"t\"'); DELETE FROM {{table}}",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(5)}', 'order', '1', 'x', '5'); "
            "UPDATE {table} SET payload = '6'; DELETE FROM {table}",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(6)}', 'order', '', 'x', '6') ON CONFLICT DO NOTHING",
        ],
        ["outbox.event.order", "outbox.event.customer"],
    ),
    Case(
        "renamed",
        "(event_id bigint PRIMARY KEY, topic text NOT NULL, message_key int NOT NULL, body json, kind varchar(20),"
        " at timestamp)",
        [
            "INSERT INTO {table} VALUES (1, 'renamed.orders', 17, '{{\"b\":1,  \"a\": 2}}', 'Created', '2024-01-01')",
            "INSERT INTO {table} VALUES (2, 'renamed.orders', -1, '2', NULL, NULL)",
        ],
        ["renamed.orders"],
        {
            "table.field.event.id": "event_id",
            "table.field.event.key": "message_key",
            "table.field.event.payload": "body",
            "route.by.field": "topic",
            "route.topic.replacement": "${routedByValue}",
            "table.fields.additional.placement": "kind:header:eventType, event_id:header:ce_id,at:header",
        },
    ),
    Case(
        "pattern",
        _TEXTS,
        [*_texts("a", "b", topic="Sales.orders_v12"), "INSERT INTO {table} VALUES (10, 'unmatched', 'k', 'c')"],
        ["pattern-orders.12.Sales", "unmatched"],
        {"route.topic.regex": "(?<area>\\w+)\\.([a-z]+)_v(\\d+)", "route.topic.replacement": "pattern-$2.$3.${area}"},
    ),
    Case(
        "json",
        _TEXTS,
        _texts(_STRANGE, None, "", '{"a": 1}', "plain", topic="json"),
        ["outbox.event.json"],
        {"table.fields.additional.placement": "aggregatetype:header:kind,payload:header:copy"},
        {**PLAIN_JSON, "key.converter": JSON, "key.converter.schemas.enable": "false", "header.converter": JSON,
         "header.converter.schemas.enable": "false"},
    ),
    Case(
        "schemas",
        _USUAL,
        [
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(1)}', 'schemas', '1', 'Created', '{{\"a\": \"ä\"}}')",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(2)}', 'schemas', '2', NULL, NULL)",
        ],
        ["outbox.event.schemas"],
        {"table.fields.additional.placement": "type:header"},
        {"key.converter": JSON, "value.converter": JSON, "header.converter": JSON},
    ),
    Case(
        "headers",
        _KINDS_TABLE,
        _kinds("headers"),
        ["outbox.event.headers"],
        {"table.fields.additional.placement": ",".join(f"{name}:header" for name in _KINDS_NAMES)},
        types=_KINDS_TYPES,
    ),
    Case(
        "envelope",
        _KINDS_TABLE,
        _kinds("envelope"),
        ["outbox.event.envelope"],
        {"table.fields.additional.placement": ",".join(f"{name}:envelope:{name}_" for name in _KINDS_NAMES)},
        PLAIN_JSON,
        types=_KINDS_TYPES,
    ),
    Case(
        "partition",
        "(id int PRIMARY KEY, aggregatetype text NOT NULL, aggregateid uuid NOT NULL, payload text, part int)",
        [
            f"INSERT INTO {{table}} SELECT n, 'partition', '{_ONE.format(1)}', n, n %% 3 FROM generate_series(1, 9) n",
            f"INSERT INTO {{table}} SELECT n, 'partition', '{_ONE.format(2)}', n, NULL FROM generate_series(10, 12) n",
        ],
        ["outbox.event.partition"],
        {"table.fields.additional.placement": "part:partition"},
    ),
    Case(
        "tombstones",
        _TEXTS,
        _texts("text", "", " \t\n", None, "\u00a0", topic="tombstones"),
        ["outbox.event.tombstones"],
        {"route.tombstone.on.empty.payload": "true"},
        PLAIN_JSON,
    ),
    Case(
        "expanded",
        _TEXTS,
        _texts(*_DOCUMENTS, topic="expanded"),
        ["outbox.event.expanded"],
        {"table.expand.json.payload": "true"},
        PLAIN_JSON,
    ),
    Case(
        "inferred",
        _TEXTS.replace("payload text", "payload json"),
        _texts(
            '{"b": 1, "a": {"c": [1, 2], "d": null, "e": [], "f": {}, "g": {"h": 2147483648}}, "t": true, "x": 0.5}',
            '{"list": [{"x": 1, "y": "q"}, {"x": 2, "y": "r"}], "n": [null, "x"], "nested": [[1], [2, 3]]}',
            '{"deep": [[{"x": {"y": 1}}]]}',
            '{"mixed": [1, "x"]}',
            None,
            topic="inferred",
        ),
        ["outbox.event.inferred"],
        {"table.expand.json.payload": "true"},
        {"value.converter": JSON},
    ),
    Case(
        "arrays",
        _TEXTS,
        _texts(*_ARRAYS, topic="arrays"),
        ["outbox.event.arrays"],
        {"table.expand.json.payload": "true"},
        PLAIN_JSON,
    ),
    Case(
        "decimals",
        _DECIMALS_TABLE,
        _DECIMALS_ROWS.replace("TOPIC", "decimals").split(";"),
        ["outbox.event.decimals"],
        {
            "table.field.event.key": "price",
            "table.fields.additional.placement": "price:header,small:header,whole:header,tiny:header",
        },
    ),
    Case(
        "decimals_in_json",
        _DECIMALS_TABLE,
        _DECIMALS_ROWS.replace("TOPIC", "decimals_in_json").split(";"),
        ["outbox.event.decimals_in_json"],
        {
            "table.field.event.key": "price",
            "table.fields.additional.placement": "price:envelope,small:envelope,whole:envelope,tiny:header",
        },
        {**PLAIN_JSON, "key.converter": JSON, "header.converter": JSON, "header.converter.decimal.format": "NUMERIC"},
    ),
    Case(
        "decimals_as_numbers",
        _DECIMALS_TABLE,
        _DECIMALS_ROWS.replace("TOPIC", "decimals_as_numbers").split(";"),
        ["outbox.event.decimals_as_numbers"],
        {"table.fields.additional.placement": "price:envelope,small:envelope,whole:envelope,tiny:envelope"},
        {**PLAIN_JSON, "value.converter.decimal.format": "NUMERIC"},
    ),
    Case(
        "envelope_schemas",
        _KINDS_TABLE,
        _kinds("envelope_schemas"),
        ["outbox.event.envelope_schemas"],
        {
            "table.fields.additional.placement": ",".join(
                "e:header" if name == "e" else f"{name}:envelope:{name}_" for name in _KINDS_NAMES
            )
        },
        {"value.converter": JSON},
        types=_KINDS_TYPES,
    ),
    Case(
        "envelope_inferred",
        _TEXTS.replace("payload text", "payload jsonb, kind text"),
        [
            *_texts('{"b": 1, "a": {"c": [1, 2]}, "s": "ä"}', '"text"', None, topic="envelope_inferred"),
            "INSERT INTO {table} VALUES (9, 'envelope_inferred', 'k', '{{\"a\": 1}}', 'x')",
        ],
        ["outbox.event.envelope_inferred"],
        {
            "table.expand.json.payload": "true",
            "table.fields.additional.placement": "kind:envelope:the \"kind\"",
            "route.tombstone.on.empty.payload": "true",
        },
        {"value.converter": JSON},
    ),
    Case(
        "defaults",
        _DEFAULTS_TABLE,
        [
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(1)}', 'defaults', 'k', '{{{{\"a\": 1}}}}', 7,"
            " '2024-01-01 00:00+00', '2024-01-01', '2024-01-01', '2024-01-01', 3, true,"
            " '2024-01-01 00:00+00', '2024-01-01', '2024-01-01', 'k', '00000000-0000-0000-0000-000000000007', '[]')",
            f"INSERT INTO {{table}} VALUES ('{_ONE.format(2)}', 'defaults', 'k', NULL, 7,"
            " '2024-01-01 00:00+00', NULL, NULL, '2024-01-01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        ],
        ["outbox.event.defaults"],
        {"table.fields.additional.placement": ",".join(f"{name}:header" for name in _DEFAULTS_NAMES)},
        {"value.converter": JSON, "key.converter": JSON, "header.converter": JSON},
    ),
    Case(
        "nulls",
        _TEXTS.replace("payload text", "payload jsonb"),
        _texts('{"a": null, "b": [null, null], "c": {"d": null}, "e": 1e2, "f": []}', "null", None, topic="nulls"),
        ["outbox.event.nulls"],
        {
            "table.expand.json.payload": "true",
            "table.json.payload.null.behavior": "optional_bytes",
            "table.fields.additional.placement": "aggregateid:envelope:key",
            "route.tombstone.on.empty.payload": "true",
        },
        PLAIN_JSON,
    ),
    Case(
        "bytes",
        "(id int PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, payload bytea)",
        [
            "INSERT INTO {table} VALUES (1, 'bytes', 'k', '\\x00ff'), (2, 'bytes', 'k', ''), (3, 'bytes', 'k', NULL)",
        ],
        ["outbox.event.bytes"],
        {"route.tombstone.on.empty.payload": "true", "table.fields.additional.placement": "payload:header"},
        {"value.converter": BINARY},
        value_type="bytea",
    ),
    Case(
        "base64",
        "(id int PRIMARY KEY, aggregatetype char(6) NOT NULL, aggregateid char(5) NOT NULL, payload bytea)",
        [("INSERT INTO {table} VALUES (1, 'base64', 'k', %s)", [bytes(range(100))])],
        ["outbox.event.base64"],
        {},
        {"binary.handling.mode": "base64"},
    ),
)  # fmt: skip
