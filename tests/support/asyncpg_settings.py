"""A connection string as asyncpg takes it."""

from __future__ import annotations

from typing import Any

from psycopg.conninfo import conninfo_to_dict


def asyncpg_settings(database: str) -> dict[str, Any]:
    """asyncpg's arguments for a connection string of libpq's."""
    given = conninfo_to_dict(database)
    return {"database": given["dbname"], **{name: given[name] for name in ("host", "port", "user", "password")}}
