"""The commands of the pages, run as they stand on real servers; only the addresses are others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from support.asyncpg_settings import asyncpg_settings
from support.schema_registry import schema_registry

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA_SOURCE = "host=127.0.0.1 port=5432 dbname=app user=app"
BOOTSTRAP = "127.0.0.1:9092"

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"/]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The parts that differ from one run to another.
_CHANCE = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\"pid\": \d+|\"time\": \"[^\"]+\"|\"seconds\": [\d.]+"
)


def lines(text: str) -> list[str]:
    """The lines of an output without what differs from run to run, and without progress."""
    return [_CHANCE.sub("", line) for line in text.splitlines() if '"event": "progress"' not in line]


def is_told(expected: list[str], output: list[str]) -> bool:
    """Whether the output has all of the expected lines, in their order."""
    rest = iter(output)
    return all(line in rest for line in expected)


def make_archive(database: str) -> None:
    """An outbox, the archive as the page on audits has it, and a record that waits."""
    [statements] = [
        text
        for language, _, text in _BLOCK.findall((DOCS / "how-to" / "audit.md").read_text("utf-8"))
        if language == "sql"
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute(statements)
        stash(connection, OutboxRecord("orders", "17", "{}"))


@pytest.mark.parametrize(
    "page", ["first-steps.md", "how-to/without-airflow.md", "how-to/operate.md", "how-to/audit.md"]
)
def test_a_page_can_be_followed_to_the_letter(page: str, database: str, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    if page == "how-to/audit.md":
        make_archive(database)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    output, ran, compared = "", 0, 0
    for language, title, text in _BLOCK.findall((DOCS / page).read_text("utf-8")):
        here = text.replace(DATA_SOURCE, database).replace(BOOTSTRAP, kafka.bootstrap)
        if title:
            (tmp_path / title).write_text(here)
        elif language == "bash":
            run = subprocess.run(
                ["bash", "-e", "-c", here], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
            )
            assert run.returncode == 0, f"{text}{run.stdout}{run.stderr}"
            output, ran = run.stdout, ran + 1
        elif language == "text":
            assert is_told(lines(text), lines(output)), f"the page says\n{text}\nthe output is\n{output}"
            compared += 1
    assert ran > 1
    assert compared == (3 if page == "first-steps.md" else 0)


def test_the_events_on_the_page_are_events() -> None:
    told = [line for line in (DOCS / "first-steps.md").read_text("utf-8").splitlines() if line.startswith('{"event"')]
    assert [json.loads(line)["event"] for line in told] == [
        "started",
        "elected",
        "view",
        "took_over",
        "progress",
        "ended",
    ]


def test_the_plain_insert_on_the_page_stashes_a_record(database: str) -> None:
    page = (DOCS / "concepts" / "outbox.md").read_text("utf-8")
    [statement] = [text for language, _, text in _BLOCK.findall(page) if language == "sql"]
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute(statement)
        assert connection.execute("SELECT kafka_topic, kafka_key, kafka_header_values FROM outbox").fetchall() == [
            ("orders", "17", ["order/1"])
        ]


def python_blocks(page: str) -> list[str]:
    text = (DOCS / "how-to" / page).read_text("utf-8")
    return [block for language, title, block in _BLOCK.findall(text) if language == "python" and not title]


async def test_the_asynchronous_writers_on_the_page_stash_with_their_rows(database: str) -> None:
    namespaces: list[dict[str, Any]] = []
    for block in python_blocks("python-writers.md"):
        if "async def pay" in block:
            namespaces.append({})
            exec(block, namespaces[-1])
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute("CREATE TABLE orders AS SELECT id, 'new' AS state FROM generate_series(1, 3) AS id")
        over_psycopg, over_asyncpg, over_sqlalchemy = (namespace["pay"] for namespace in namespaces)
        await over_psycopg(database, 1)
        settings = asyncpg_settings(database)
        async with asyncpg.create_pool(**settings, min_size=1, max_size=1) as pool:
            await over_asyncpg(pool, 2)
        engine = create_async_engine("postgresql+asyncpg://", connect_args=settings)
        await over_sqlalchemy(engine, 3)
        await engine.dispose()
        stashed = connection.execute("SELECT kafka_key, kafka_value, transaction_id::text FROM outbox ORDER BY id")
        changed = connection.execute('SELECT id::text, \'{"state": "paid"}\', xmin::text FROM orders ORDER BY id')
        assert stashed.fetchall() == changed.fetchall()


def test_the_cloud_events_on_the_page_are_stashed(database: str) -> None:
    [in_python, _] = python_blocks("cloud-events.md")
    page = (DOCS / "how-to" / "cloud-events.md").read_text("utf-8")
    [in_sql] = [text for language, _, text in _BLOCK.findall(page) if language == "sql"]
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), stash_function=True)
        connection.execute("CREATE TABLE orders AS SELECT 17 AS id, 'new' AS state")
        exec(in_python.replace("dbname=app", database), {})
        connection.execute(in_sql)
        headers = connection.execute("SELECT kafka_header_keys, kafka_header_values FROM outbox ORDER BY id").fetchall()
    first, second = (dict(zip(names, values, strict=True)) for names, values in headers)
    assert first.pop("ce_subject") == "17"
    assert first.pop("ce_id") != second.pop("ce_id")
    assert first == second


def test_the_serializer_on_the_page_makes_records() -> None:
    namespace: dict[str, Any] = {}
    exec(python_blocks("schema-registry.md")[0], namespace)
    with schema_registry() as (url, registry):
        record = namespace["order_events"](url)("17", {"state": "paid"})
    assert (record.key, record.value) == ("17", b"\x00\x00\x00\x00\x01\x08paid")
    assert registry.subjects == {"orders-value": [1]}
