"""Traps that a role lays in a schema where it may make objects: functions and operators that fit the project's own
statements better than those of Postgres. One that is called raises an error with `TRAP` in it.
"""

from __future__ import annotations

import re
from importlib.resources import files

import psycopg

TRAP = "fell into a trap"
_TYPES = (
    *("text", "varchar", "name", "integer", "bigint", "oid", "regclass", "xid8", "pg_snapshot", "numeric"),
    *("float8", "timestamptz", "uuid", "jsonb"),
)
_ALONE = (*_TYPES, "text[]", "xid8[]", "boolean")
_IN_PAIRS = ("text", "varchar", "integer", "oid", "regclass")
_OPERATORS = ("=", "<>", "<", ">", "<=", ">=", "-", "+", "||", "->>")
_WITH_MORE_ARGUMENTS = (
    "concat_ws(text, pg_snapshot, numeric, numeric)",
    "concat_ws(text, integer, integer, text)",
    "jsonb_build_object(text, integer, text, timestamptz)",
    "has_column_privilege(text, varchar, varchar)",
)
_LAY = """
SET search_path = pg_catalog;
DO $lay$
DECLARE
    one TEXT;
    other TEXT;
    wanted RECORD;
    body CONSTANT TEXT := ' RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION ''{trap}''; END $$';
BEGIN
    FOREACH one IN ARRAY %(more)s::text[] LOOP
        EXECUTE 'CREATE FUNCTION public.' || one || body;
    END LOOP;
    FOR wanted IN
        SELECT DISTINCT proname, pronargs FROM pg_proc
        WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY(%(names)s::text[]) AND pronargs IN (1, 2)
    LOOP
        IF wanted.pronargs = 1 THEN
            FOREACH one IN ARRAY %(alone)s::text[] LOOP
                EXECUTE format('CREATE FUNCTION public.%%I(%%s) %%s', wanted.proname, one, body);
            END LOOP;
        ELSE
            FOREACH one IN ARRAY %(in_pairs)s::text[] LOOP
                FOREACH other IN ARRAY %(in_pairs)s::text[] LOOP
                    EXECUTE format('CREATE FUNCTION public.%%I(%%s, %%s) %%s', wanted.proname, one, other, body);
                END LOOP;
            END LOOP;
        END IF;
    END LOOP;
    FOREACH one IN ARRAY %(types)s::text[] LOOP
        FOREACH other IN ARRAY %(types)s::text[] LOOP
            EXECUTE format('CREATE FUNCTION public.trap(%%s, %%s) %%s', one, other, body);
        END LOOP;
    END LOOP;
    FOR wanted IN SELECT * FROM unnest(%(operators)s::text[]) AS symbol LOOP
        FOREACH one IN ARRAY %(types)s::text[] LOOP
            FOREACH other IN ARRAY %(types)s::text[] LOOP
                EXECUTE format('CREATE OPERATOR public.%%s (LEFTARG = %%s, RIGHTARG = %%s, FUNCTION = public.trap)',
                               wanted.symbol, one, other);
            END LOOP;
        END LOOP;
    END LOOP;
END
$lay$;
RESET search_path
"""


def called_functions() -> list[str]:
    """Every name in the project's SQL that is followed by a bracket."""
    folder = files("airflow_outbox.sql")
    texts = [entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return sorted({name.lower() for text in texts for name in re.findall(r"\b([a-z_0-9]+)\(", text)})


def lay_traps(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """In `public`, as the connected role."""
    values = {
        "more": list(_WITH_MORE_ARGUMENTS),
        "names": called_functions(),
        "types": list(_TYPES),
        "alone": list(_ALONE),
        "in_pairs": list(_IN_PAIRS),
        "operators": list(_OPERATORS),
    }
    statement = psycopg.ClientCursor(connection).mogrify(_LAY.replace("{trap}", TRAP), values)
    connection.execute(statement.encode())
