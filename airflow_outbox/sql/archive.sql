-- Every statement about the archive, which keeps published records for a while when the configuration says `purge:
-- archive`.
-- {archive}: the table; {partition}: one of its partitions, each for a day (UTC); {default}: the one for days without
-- one; {columns}: the outbox's columns that the archive has, too.

-- make --
-- The archive and its default partition. `view` is the leader's that purged the record. `batch` is the record's number
-- in the ledger; records published at least once have none.
CREATE TABLE {archive} (LIKE {outbox}, archived_at TIMESTAMPTZ NOT NULL, view UUID NOT NULL, batch BIGINT) PARTITION BY RANGE (archived_at);
ALTER TABLE {archive} DROP COLUMN leader_id, ALTER COLUMN kafka_key DROP NOT NULL;
CREATE INDEX ON {archive} (id);
CREATE TABLE {default} PARTITION OF {archive} DEFAULT;
ALTER TABLE {default} REPLICA IDENTITY FULL

-- archived --
-- Part of the purging statements, where the rows that they delete (`purged`) are archived.
, archived AS (
    INSERT INTO {archive} ({columns}, archived_at, view, batch)
    SELECT {columns}, statement_timestamp(), %(view)s::uuid, %(batch)s::bigint FROM purged
)

-- exists --
SELECT to_regclass(%(archive)s) IS NOT NULL

-- may_tend --
-- Whether the connected role may make and drop partitions: as the archive's owner, and may make tables beside it.
SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') FROM pg_class WHERE oid = to_regclass(%(archive)s)

-- partitions --
-- The names of the archive's partitions.
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = to_regclass(%(archive)s)

-- add_partition --
-- A day's partition, with that day's records from the default one. Attaching it locks the default partition, and the
-- archive only against other changes of its partitions; so purging goes on. With a replica identity, rows of a table without
-- a key can be deleted although a publication has it.
CREATE TABLE {partition} (LIKE {archive});
ALTER TABLE {partition} REPLICA IDENTITY FULL;
WITH moved AS (DELETE FROM {default} WHERE archived_at >= {begin} AND archived_at < {end} RETURNING *)
INSERT INTO {partition} SELECT * FROM moved;
ALTER TABLE {archive} ATTACH PARTITION {partition} FOR VALUES FROM ({begin}) TO ({end});

-- drop_partition --
DROP TABLE {partition}

-- clear_default --
-- Deletes records from the default partition that need not be kept any longer.
DELETE FROM {default} WHERE archived_at < %(oldest)s

-- now --
-- The server's time, which dates archived records.
SELECT pg_catalog.clock_timestamp()

-- default_records --
-- How many records are in the default partition, as far as a look at the first ones tells.
SELECT count(*) FROM (SELECT FROM {default} LIMIT 1000) AS records

-- replay_count --
-- How many records a replay would stash again, by topic.
SELECT kafka_topic, count(*) FROM {archive} WHERE {chosen} GROUP BY kafka_topic ORDER BY kafka_topic

-- replay_newest --
-- The highest id in the archive. A replay goes up to there, and not on to records that it has stashed itself.
SELECT coalesce(max(id), 0) FROM {archive}

-- replay_begun --
-- A replay's entry in the list of commits: its choices as part of the name, and how far it goes.
SELECT app_id, version FROM {commits} WHERE starts_with(app_id, %(prefix)s) AND {by_an_operator}

-- replay_done --
-- The id up to which a replay has come, and how many records it has stashed.
SELECT max(version), coalesce(sum(records), 0)::bigint FROM {commits} WHERE app_id = %(app_id)s AND {by_an_operator}

-- by_an_operator --
-- Part of the two above: entries of roles that may operate, or that are no more. A job could enter a replay's name,
-- too.
NOT EXISTS (SELECT FROM pg_roles WHERE rolname = owner AND NOT has_column_privilege(pg_roles.oid, to_regclass(%(parked)s), 'requested', 'UPDATE'))

-- replay_next --
-- Where the next records of a replay end, by id. Records that share an id (after a restore) are not divided.
SELECT max(id) FROM (
    SELECT id FROM {archive}
    WHERE id > %(above)s AND id <= %(newest)s AND {chosen}
    ORDER BY id
    FETCH FIRST %(records)s ROWS WITH TIES
) AS next

-- replay_stash --
-- Stashes them again, in order, each with a header that names the replay.
INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values{partition})
SELECT clock_timestamp(), coalesce(%(to_topic)s::text, kafka_topic), kafka_key, kafka_value,
       kafka_header_keys || %(header)s::text, kafka_header_values || {header_value}{partition}
FROM {archive}
WHERE id > %(above)s AND id <= %(upto)s AND {chosen}
ORDER BY id

-- text_header_value --
-- Part of `replay_stash`, where header values are text.
%(replay_id)s::text

-- bytes_header_value --
-- Part of `replay_stash`, where header values are bytes.
convert_to(%(replay_id)s::text, 'UTF8')

-- chosen --
-- Part of a replay's statements: which records are meant. Records that a replay has stashed are not replayed again.
NOT coalesce(%(header)s::text = ANY(kafka_header_keys), false)
AND (%(topic)s::text IS NULL OR kafka_topic = %(topic)s::text)
AND (%(key)s::{key_type} IS NULL OR kafka_key = %(key)s::{key_type})
AND (%(from_id)s::bigint IS NULL OR id >= %(from_id)s::bigint)
AND (%(to_id)s::bigint IS NULL OR id <= %(to_id)s::bigint)
AND (%(since)s::timestamptz IS NULL OR archived_at >= %(since)s::timestamptz)
AND (%(until)s::timestamptz IS NULL OR archived_at < %(until)s::timestamptz)
