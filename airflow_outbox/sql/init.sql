-- Make and migrate an outbox, and prepare what jobs stage. The owner runs these.

-- where_it_is --
-- A table's schema, and the schema and name of the sequence that its ids are drawn from.
SELECT nspname, (
    SELECT ARRAY[place.nspname, sequence.relname]::text[]
    FROM pg_class AS sequence JOIN pg_namespace AS place ON place.oid = sequence.relnamespace
    WHERE sequence.oid = to_regclass(pg_get_serial_sequence(%(table)s, 'id'))
)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(%(table)s)

-- schema_exists --
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)

-- create_schema --
CREATE SCHEMA {schema}

-- staging_schema --
-- The owner of the schema in which jobs stage (null: it is not there), and whether that is the outbox's owner or a
-- superuser; the outbox's owner; and whether the connected role may make schemas.
SELECT holder.oid::regrole::text, coalesce(holder.rolsuper OR holder.oid = relowner, true), relowner::regrole::text,
       has_database_privilege(current_database(), 'CREATE')
FROM pg_class
LEFT JOIN pg_namespace ON nspname = %(staging)s
LEFT JOIN pg_roles AS holder ON holder.oid = nspowner
WHERE pg_class.oid = to_regclass(%(table)s)

-- create_staging_schema --
CREATE SCHEMA {staging} AUTHORIZATION {owner}

-- owner --
-- The outbox's owner, and whether the connected role may do what its owner may.
SELECT pg_get_userbyid(relowner)::text, pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%(table)s)

-- schema_version --
-- Until version 6 it was in the rows of the shards.
SELECT schema_version FROM {table} LIMIT 1

-- set_schema_version --
UPDATE {state} SET schema_version = {version}

-- table_size --
-- The size of the outbox with its indexes, in words, and about how many rows it has.
SELECT pg_size_pretty(pg_total_relation_size(oid)), greatest(reltuples, 0)::bigint
FROM pg_class WHERE oid = to_regclass(%(table)s)

-- add_transaction_id --
-- For an outbox that goharvest made. To Postgres the default differs from row to row, so this rewrites the table, which
-- nobody can read or write meanwhile. Existing rows get the id of this transaction.
ALTER TABLE {outbox} ADD COLUMN transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX ON {outbox} (transaction_id);
ALTER TABLE {parked} ADD COLUMN IF NOT EXISTS transaction_id XID8;
CREATE INDEX ON {parked} (transaction_id);
ALTER TABLE IF EXISTS {archive} ADD COLUMN IF NOT EXISTS transaction_id XID8
