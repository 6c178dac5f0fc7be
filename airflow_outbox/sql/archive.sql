-- Every statement about the archive, where published records are kept for a while when the configuration says `purge: archive`.
-- {archive}: the table; {partition}: one of its partitions, which hold a day (UTC) each; {default}: the one for days that have none;
-- {columns}: the outbox's columns that the archive has, too.

-- make --
-- The archive and its default partition. `view` is the leader's that purged the record, `batch` its number in the ledger, which records
-- that were published at least once, or after they had been parked, do not have.
CREATE TABLE {archive} (LIKE {outbox}, archived_at TIMESTAMPTZ NOT NULL, view UUID NOT NULL, batch BIGINT) PARTITION BY RANGE (archived_at);
ALTER TABLE {archive} DROP COLUMN leader_id;
CREATE INDEX ON {archive} (id);
CREATE TABLE {default} PARTITION OF {archive} DEFAULT;

-- archived --
-- Part of the statements that purge, where what they delete (`purged`) is archived.
, archived AS (
    INSERT INTO {archive} ({columns}, archived_at, view, batch)
    SELECT {columns}, statement_timestamp(), %(view)s::uuid, %(batch)s::bigint FROM purged
)

-- exists --
SELECT to_regclass(%(archive)s) IS NOT NULL

-- may_tend --
-- Whether the connected role may make and drop partitions: as the archive's owner, who may make tables beside it.
SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') FROM pg_class WHERE oid = to_regclass(%(archive)s)

-- partitions --
-- The names of the archive's partitions.
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = to_regclass(%(archive)s)

-- add_partition --
-- A day's partition, with what has come into the default one for that day. To attach it locks the default partition, and the archive only
-- against others that change its partitions; so purging goes on.
CREATE TABLE {partition} (LIKE {archive});
WITH moved AS (DELETE FROM {default} WHERE archived_at >= {begin} AND archived_at < {end} RETURNING *)
INSERT INTO {partition} SELECT * FROM moved;
ALTER TABLE {archive} ATTACH PARTITION {partition} FOR VALUES FROM ({begin}) TO ({end});

-- drop_partition --
DROP TABLE {partition}

-- clear_default --
-- Deletes from the default partition what is to be kept no longer.
DELETE FROM {default} WHERE archived_at < %(oldest)s

-- default_records --
-- How many records stand in the default partition, as far as a look at the first ones tells.
SELECT count(*) FROM (SELECT FROM {default} LIMIT 1000) AS records
