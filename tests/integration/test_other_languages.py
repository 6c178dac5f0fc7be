"""The programs of the page on other languages, run as they stand, over the common driver of each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_outbox import Ticket
from airflow_outbox.demo.embedded.jars import fetched_jars
from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "other-languages.md").read_text("utf-8")
PROGRAMS = dict(re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def in_go(folder: Path) -> list[list[str]]:
    go = program("go")
    return [[go, "mod", "init", "shop"], [go, "get", "github.com/jackc/pgx/v5@v5.12.0"], [go, "run", "."]]


def in_node(folder: Path) -> list[list[str]]:
    return [[program("npm"), "install", "pg@8"], [program("node"), "stash.mjs"]]


def in_java(folder: Path) -> list[list[str]]:
    program("javac")  # a runtime alone does not compile
    jars = fetched_jars(ROOT / ".dev" / "jars", "jdbc", ["org.postgresql:postgresql:42.7.7"], needed=["postgresql"])
    return [[str(find_java()), "-cp", f"{jars}/*", "Stash.java"]]


def program(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"there is no {name}")


@pytest.mark.long
@pytest.mark.parametrize(("file", "steps"), [("main.go", in_go), ("stash.mjs", in_node), ("Stash.java", in_java)])
def test_a_program_stashes_in_its_own_transaction(
    file: str, steps: Callable[[Path], list[list[str]]], database: str, tmp_path: Path
) -> None:
    given = conninfo_to_dict(database)
    user, password = (quote(str(given[name]), safe="") for name in ("user", "password"))
    place = f"{given['host']}:{given['port']}/{given['dbname']}"
    environment = os.environ | {
        "DATABASE_URL": f"postgresql://{user}:{password}@{place}",
        "JDBC_URL": f"jdbc:postgresql://{place}?user={user}&password={password}",
    }
    (tmp_path / file).write_text(PROGRAMS[file])
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), stash_function=True)
        connection.execute("CREATE TABLE orders AS SELECT 17 AS id, 'new' AS state")
        for command in steps(tmp_path):
            run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert run.returncode == 0, run.stdout + run.stderr
        ticket = Ticket.parse(run.stdout.strip())
        columns = "kafka_key, kafka_value::json->>'state', kafka_header_keys, kafka_header_values, transaction_id::text"
        assert connection.execute(f"SELECT {columns} FROM outbox").fetchall() == [  # type: ignore[call-overload]
            ("17", "paid", ["schema"], ["order/1"], str(ticket.transaction_id))
        ]
        # The business row was changed in the same transaction.
        assert connection.execute("SELECT state, xmin::text FROM orders").fetchone() == (
            "paid",
            str(ticket.transaction_id % 2**32),
        )


def test_the_statement_on_the_page_stashes_a_record(database: str) -> None:
    [statements] = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), stash_function=True)
        connection.execute("CREATE TABLE orders AS SELECT 17 AS id, 'new' AS state")
        connection.execute(statements)
        assert connection.execute("SELECT kafka_key, kafka_header_keys FROM outbox").fetchall() == [("17", ["schema"])]
