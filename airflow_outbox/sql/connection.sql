-- Statements about a connection, and the look-ups before an outbox's schema is known.
-- Statements that also run on a caller's connection name functions and operators so that no other schema's can fit
-- better.

-- begin_session --
-- For each connection of the outbox's own: overrides the settings of role and database. Returns where the role would
-- look for tables. The caller knows how long a statement may take.
SELECT pg_catalog.current_schemas(false)::pg_catalog.text[];
SET search_path = pg_catalog;
SET synchronous_commit = {durable};
SET client_encoding = {encoding};
SET standard_conforming_strings = on;
SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off;
SET row_security = off;
SET DateStyle = 'ISO, YMD';
SET TimeZone = 'UTC';
SET bytea_output = 'hex';
SET array_nulls = on;
SET transform_null_equals = off;
SET lock_timeout = '10s';
SET statement_timeout = 0;
-- Which of these there are depends on the server's release.
SELECT set_config(name, '0', false) FROM pg_settings
WHERE name IN ('idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')

-- notice_hang_ups --
-- A statement whose client has gone ends, and does not go on for hours. From Postgres 14 on.
SET client_connection_check_interval = '1s'

-- backend_pid --
SELECT pg_catalog.pg_backend_pid()

-- columns --
-- The columns of a table by name, with type and length limit; no row when the table is not there.
SELECT attname, pg_catalog.format_type(atttypid, NULL::integer) AS type,
       CASE WHEN atttypid = 'pg_catalog.varchar'::regtype::oid AND atttypmod >= 4 THEN atttypmod - 4 END AS max_length
FROM pg_catalog.pg_attribute
WHERE attrelid = pg_catalog.to_regclass(%(table)s::text)::oid AND attnum > 0 AND NOT attisdropped

-- schema_of --
-- The first of some schemas that has a table of this name.
SELECT place.nspname
FROM unnest(%(schemas)s::text[]) WITH ORDINALITY AS wanted (name, number)
JOIN pg_namespace AS place ON place.nspname = wanted.name
JOIN pg_class AS relation ON relation.relnamespace = place.oid AND relation.relname = %(table)s::text
ORDER BY wanted.number
LIMIT 1

-- lock_name --
-- Lets one process at a time make or migrate the tables of an outbox; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))

-- wait_briefly --
-- Before a take-over: a process that locks the fence row for this long has stopped.
SET LOCAL lock_timeout = '1s'
