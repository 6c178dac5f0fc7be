-- Every statement of a running outbox. {outbox}, {leader}: its tables; {key_type}, {value_type}, {header_type}: its columns' types.
-- `view` is the term of leadership that asks. A statement that changes anything locks the fence row (FOR SHARE) and goes by what that
-- row says once it has the lock: a successor's take-over, an UPDATE of the same row, comes either before it or after it, never between.

-- columns --
-- The columns of a table by name, with type and length limit; no row when the table is not there.
SELECT attname, format_type(atttypid, NULL) AS type, CASE WHEN atttypid = 'varchar'::regtype AND atttypmod >= 4 THEN atttypmod - 4 END AS max_length
FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped

-- stash --
-- Inserts records, given as one JSON array, in their order, and returns the ticket.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    SELECT now(), topic, key, value, names, "values"
    FROM ROWS FROM (json_to_recordset(%(records)s::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- stash_with_partition --
-- The same for an outbox that has the column kafka_partition.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition)
    SELECT now(), topic, key, value, names, "values", partition
    FROM ROWS FROM (json_to_recordset(%(records)s::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- ticket --
-- The ticket of the caller's transaction, for a writer that fills the outbox by a statement of its own.
SELECT outbox_id::text, incarnation, pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- identity --
-- The outbox's id, schema version and incarnation.
SELECT outbox_id, schema_version, incarnation FROM {leader} WHERE shard = 0

-- wait_briefly --
-- Before a take-over: a lock on the fence row that is held for this long is held by a process that has stopped.
SET LOCAL lock_timeout = '1s'

-- take_over --
-- Writes a new view and its backends into the fence row. It waits for a statement of the old view that holds the row.
UPDATE {leader}
SET view = %(view)s, backends = %(backends)s, member = %(member)s, took_over_at = clock_timestamp(),
    heartbeat_at = clock_timestamp(), in_flight = 0, rate = 0
WHERE shard = %(shard)s
RETURNING paused

-- backend --
-- This connection's own backend, as the fence row names it: a process id alone could be another's by the time it is used.
SELECT jsonb_build_object('pid', pid, 'started', backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- end_old_backends --
-- Ends the backends that the fence row names. A stopped process keeps its transaction, and so its lock, for ever otherwise.
SELECT count(pg_terminate_backend(activity.pid))
FROM {leader}
CROSS JOIN LATERAL jsonb_to_recordset(backends) AS old (pid integer, started timestamptz)
JOIN pg_stat_activity AS activity ON activity.pid = old.pid AND activity.backend_start = old.started
WHERE shard = %(shard)s

-- mark --
-- Claims the next records by id, unmarked or marked by another view, and returns them: at most max_records, and no more than it takes
-- to reach max_bytes. Nothing comes back when nothing is due or when the fence is another view's; `holds_fence` tells which.
WITH due AS MATERIALIZED (
    SELECT id
    FROM (
        SELECT id, sum(size) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM (
            SELECT id, octet_length(kafka_key) + coalesce(octet_length(kafka_value), 0) AS size
            FROM {outbox}
            WHERE leader_id IS DISTINCT FROM %(view)s
            ORDER BY id
            LIMIT %(max_records)s
        ) AS unmarked
    ) AS running
    WHERE coalesce(bytes_before, 0) < %(max_bytes)s
), fence AS MATERIALIZED (
    SELECT FROM {leader}
    WHERE shard = %(shard)s AND view = %(view)s AND EXISTS (SELECT FROM due)
    FOR SHARE
), marked AS (
    UPDATE {outbox} AS record
    SET leader_id = %(view)s
    FROM due
    WHERE record.id = due.id AND EXISTS (SELECT FROM fence)
    RETURNING record.*
)
SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, {partition}
FROM marked
ORDER BY id

-- holds_fence --
-- Whether the fence is this view's. Locks nothing.
SELECT view IS NOT DISTINCT FROM %(view)s FROM {leader} WHERE shard = %(shard)s

-- purge --
-- Deletes published records, by exact ids, as long as they carry this view's mark and the fence is this view's; says whether it is.
WITH fence AS MATERIALIZED (
    SELECT FROM {leader} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox} WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- reset --
-- Takes this view's mark from records that could not be published, so that the next mark of any view finds them.
WITH fence AS MATERIALIZED (
    SELECT FROM {leader} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), reset AS (
    UPDATE {outbox} SET leader_id = NULL WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- heartbeat --
-- Keeps the fence row's account: alive, and how many records have been published. Returns what operators ask of the
-- leader; no row when the fence is another view's.
UPDATE {leader}
SET heartbeat_at = clock_timestamp(), published = published + %(published)s, in_flight = %(in_flight)s, rate = %(rate)s
WHERE shard = %(shard)s AND view = %(view)s
RETURNING paused, coalesce(handover_asked_at > took_over_at, false)

-- note_error --
-- Leaves the reason why this view could not go on where `check` and an operator find it.
UPDATE {leader}
SET last_error = %(error)s, last_error_at = clock_timestamp()
WHERE shard = %(shard)s AND view = %(view)s

-- is_empty --
-- Whether every committed record has been published and purged.
SELECT NOT EXISTS (SELECT FROM {outbox})

-- commit_once --
-- Enters a job's commit. No row comes back when the same job and version has committed before; a rival that is committing is waited for.
INSERT INTO {commits} (app_id, version, records)
VALUES (%(app_id)s, %(version)s, %(records)s)
ON CONFLICT DO NOTHING
RETURNING transaction_id::text

-- earlier_commit --
-- What the same job and version has committed before, with the parts of its ticket.
SELECT transaction_id::text, records, outbox_id, incarnation
FROM {commits} CROSS JOIN {leader}
WHERE app_id = %(app_id)s AND version = %(version)s AND shard = 0

-- harvest_privileges --
-- What the connected role may do with the tables, as the harvester needs it.
SELECT has_table_privilege(%(outbox)s, 'SELECT') AND has_table_privilege(%(outbox)s, 'DELETE')
       AND has_column_privilege(%(outbox)s, 'leader_id', 'UPDATE') AS outbox,
       has_table_privilege(%(leader)s, 'SELECT') AND has_table_privilege(%(leader)s, 'UPDATE') AS leader

-- lock_name --
-- Lets one process at a time make or migrate the tables of an outbox; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))

-- schema_exists --
SELECT to_regnamespace(quote_ident(%(schema)s)) IS NOT NULL

-- create_schema --
CREATE SCHEMA {schema}

-- set_schema_version --
UPDATE {leader} SET schema_version = %(version)s

-- where_it_is --
-- The schema that a table is found in, and the sequence that its ids are drawn from.
SELECT relnamespace::regnamespace::name, pg_get_serial_sequence(%(table)s, 'id')
FROM pg_class WHERE oid = to_regclass(%(table)s)

-- backend_pid --
SELECT pg_backend_pid()

-- sequence_cache --
-- How many ids a session draws at once.
SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass(pg_get_serial_sequence(%(outbox)s, 'id'))

-- pending_topics --
-- The topics of the records that wait, as far as a look at the first ones tells.
SELECT DISTINCT kafka_topic FROM (SELECT kafka_topic FROM {outbox} ORDER BY id LIMIT %(limit)s) AS head

-- ask_pause --
-- Asks every leader to pause or to go on; it sees that with its next heartbeat.
UPDATE {leader} SET paused = %(paused)s

-- ask_handover --
-- Asks a shard's leader to let another member lead; it sees that with its next heartbeat.
UPDATE {leader} SET handover_asked_at = clock_timestamp() WHERE shard = %(shard)s

-- status --
-- One row a shard.
SELECT shard, member, view, took_over_at, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silent_for,
       published, in_flight, rate, paused, last_error, last_error_at
FROM {leader}
ORDER BY shard

-- backlog --
-- How many records wait, and since when the oldest has been waiting, in seconds.
SELECT count(*), extract(epoch FROM clock_timestamp() - min(create_time))::float8 FROM {outbox}

-- table_size --
-- The size of the outbox with its indexes, in words, and about how many rows it has.
SELECT pg_size_pretty(pg_total_relation_size(oid)), greatest(reltuples, 0)::bigint
FROM pg_class WHERE oid = to_regclass(%(table)s)

-- add_transaction_id --
-- To an outbox that goharvest made. The default differs from row to row as far as Postgres knows, so it rewrites the table,
-- which nobody can read or write meanwhile; rows that are there get the id of this transaction.
ALTER TABLE {outbox} ADD COLUMN transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX ON {outbox} (transaction_id);
