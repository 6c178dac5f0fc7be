"""Errors of Postgres as this project's errors, which say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from airflow_outbox.errors import OutboxError, OutboxMissingError, PostgresError, PostgresUnreachableError
from airflow_outbox.postgres.names import OutboxName

CONNECT_DIRECTLY = "Give the outbox a direct connection"
_TAKEN = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateFunction)
_GONE = ("08", "57P")  # SQLSTATE classes: connection exceptions, and a server that is shutting down or starting


@contextmanager
def translated(name: OutboxName) -> Iterator[None]:
    """Raise this project's errors, which say what to do, in place of psycopg's."""
    try:
        yield
    except OutboxError:
        raise
    except psycopg.errors.UndefinedTable as error:
        if error.diag.context is None:
            raise OutboxMissingError(f"{name}: {reason_of(error)}. Run `airflow-outbox init`") from error
        remedy = "A function that runs for the outbox must name schemas, because only pg_catalog is searched"
        raise PostgresError(f"{name}: {reason_of(error)} ({error.diag.context.splitlines()[0]}). {remedy}") from error
    except psycopg.errors.UndefinedColumn as error:
        remedy = "The tables are older than this release, or goharvest made them. Run `airflow-outbox init`"
        if "transaction_id" in str(error):
            remedy = "goharvest made the table. `airflow-outbox init --transaction-id` adds the column"
        raise PostgresError(f"{name}: {reason_of(error)}. {remedy}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        if error.diag.source_function == "check_enable_rls":  # not translated, unlike the message
            remedy = "Disable it for that table: it would hide rows from this role"
            raise PostgresError(f"{name}: {reason_of(error)}. {remedy}") from error
        raise PostgresError(f"{name}: {reason_of(error)}. `airflow-outbox grant` prints what the role needs") from error
    except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement) as error:
        remedy = f"The data source leads to a pooler (PgBouncer?) in transaction mode. {CONNECT_DIRECTLY}"
        raise PostgresError(f"{name}: {reason_of(error)}. {remedy}") from error
    except _TAKEN as error:
        remedy = "Something else has this name. Drop that, or choose another name for the outbox"
        raise PostgresError(f"{name}: {reason_of(error)}. {remedy}") from error
    except psycopg.errors.LockNotAvailable as error:
        remedy = "Another session holds it: `airflow-outbox check` names it"
        raise PostgresError(f"{name}: waited too long for a lock ({reason_of(error)}). {remedy}") from error
    except psycopg.errors.DiskFull as error:
        raise PostgresError(f"{name}: {reason_of(error)}. Free some of Postgres' disk") from error
    except psycopg.Error as error:
        raise (PostgresUnreachableError if is_gone(error) else PostgresError)(f"{name}: {reason_of(error)}") from error


@contextmanager
def replicated(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Raise PostgresError when a commit's wait for the synchronous standbys is cancelled. The commit is then not
    durable, and Postgres only warns.
    """
    warnings: list[str] = []

    def hear(warning: psycopg.errors.Diagnostic) -> None:
        if warning.source_function == "SyncRepWaitForLSN":  # not translated, unlike the message
            warnings.append(" ".join((warning.message_primary or "").split()))

    connection.add_notice_handler(hear)
    try:
        yield
    finally:
        connection.remove_notice_handler(hear)
    if warnings:
        raise PostgresError(
            f"Postgres has committed without its synchronous standbys: {warnings[0]}. "
            "Find out what cancels this role's statements"
        )


def is_gone(error: psycopg.Error) -> bool:
    """Whether the server, or the way to it, is gone. Otherwise it refused a statement."""
    return isinstance(error, psycopg.InterfaceError) or (
        isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_GONE)
    )


def reason_of(error: psycopg.Error) -> str:
    """Return what happened, in one line, without libpq's question to the user: errors of ours say what to do."""
    lines = (error.diag.message_primary or str(error)).splitlines()
    return " ".join(" ".join(line for line in lines if not line.startswith("\tIs the server running")).split())
