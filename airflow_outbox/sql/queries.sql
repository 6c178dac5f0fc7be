-- Every statement of a running outbox. {outbox}, {leader}: its tables; {key_type}, {value_type}, {header_type}: its
-- columns' types.
-- A connection of the outbox's own looks for functions and operators in pg_catalog alone. Statements that also run on a
-- caller's connection (up to `identity`, `commit_once` and `earlier_commit`) name them so that no other schema's can
-- fit better.
-- `view` is the term of leadership that asks. A statement that changes anything locks the fence row (FOR SHARE) and
-- goes by what it says once it has the lock. So a successor's take-over, an UPDATE of the same row, comes either before
-- it or after it, never between.

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
SET bytea_output = 'hex';
SET array_nulls = on;
SET transform_null_equals = off;
SET lock_timeout = '10s';
SET statement_timeout = 0

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

-- stash --
-- Inserts records, given as one JSON array, in their order, and returns the ticket.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    SELECT pg_catalog.now(), topic, key, value, names, "values"
    FROM ROWS FROM (pg_catalog.json_to_recordset(%(records)s::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- stash_with_partition --
-- The same for an outbox that has the column kafka_partition.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition)
    SELECT pg_catalog.now(), topic, key, value, names, "values", partition
    FROM ROWS FROM (pg_catalog.json_to_recordset(%(records)s::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- ticket --
-- The ticket of the caller's transaction, for a writer that fills the outbox by its own statement.
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {leader} WHERE shard = 0

-- identity --
-- The outbox's id, schema version and incarnation.
SELECT outbox_id, schema_version, incarnation FROM {leader} WHERE shard = 0

-- wait_briefly --
-- Before a take-over: a process that locks the fence row for this long has stopped.
SET LOCAL lock_timeout = '1s'

-- take_over --
-- Writes a new view and its backends into the fence row. It waits for a statement of the old view that holds the row.
-- `after`, unless empty, holds the only views that may be followed. `outbox_id`, unless null, is the outbox that the
-- harvester was started for. An incarnation's first leader records the history.
UPDATE {leader} AS fence
SET view = %(view)s, backends = %(backends)s, member = %(member)s, took_over_at = clock_timestamp(),
    heartbeat_at = clock_timestamp(), in_flight = 0, rate = 0,
    system_identifier = coalesce(fence.system_identifier, present.system_identifier),
    timeline = coalesce(fence.timeline, present.timeline),
    table_oid = coalesce(fence.table_oid, present.table_oid),
    database_oid = CASE WHEN fence.system_identifier IS NULL THEN present.database_oid ELSE fence.database_oid END
FROM (
    SELECT (pg_control_system()).system_identifier, to_regclass(%(outbox)s)::oid AS table_oid,
           (SELECT oid FROM pg_database WHERE datname = current_database()) AS database_oid,
           ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline
) AS present
WHERE shard = %(shard)s AND (cardinality(%(after)s::uuid[]) = 0 OR fence.view = ANY(%(after)s))
      AND (%(outbox_id)s::uuid IS NULL OR fence.outbox_id = %(outbox_id)s)
RETURNING true

-- fence --
-- The fence row, if it names this view, and what the database says of itself now: its history, and how far its ids and
-- transaction ids have come. Ids that come from no sequence never fall back. Without the right to read the sequence,
-- its value is null.
SELECT paused, coalesce(handover_asked_at > took_over_at, false), outbox_id, incarnation, delivery, transactional_ids,
       system_identifier, timeline, table_oid::bigint, database_oid::bigint,
       (pg_control_system()).system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
       to_regclass(%(outbox)s)::oid::bigint, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       ledger_topic_id, witnessed_batch, ledger_offset, highest_id,
       CASE WHEN sequence IS NULL THEN 9223372036854775807
            WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0) END,
       beats, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       {newest_transaction_id}, halted, watermark::text, covered_batch, topics, uncovered, begun_view
FROM {leader}, CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE shard = %(shard)s AND view = %(view)s

-- begin --
-- Records how the term harvests, which ledger it goes by, and its producers' ids (null: as before). From now on only
-- this view can publish records that the witness does not know of. A history from an earlier release, without the
-- database's oid, gets it.
UPDATE {leader}
SET begun_view = %(view)s, database_oid = coalesce(database_oid, (SELECT oid FROM pg_database WHERE datname = current_database())),
    delivery = %(delivery)s, transactional_ids = coalesce(%(transactional_ids)s::text[], transactional_ids), ledger_topic_id = %(topic_id)s,
    witnessed_batch = %(batch)s, ledger_offset = %(offset)s, highest_id = %(highest_id)s, beats = beats + 1,
    watermark = coalesce(%(watermark)s::pg_snapshot, watermark), covered_batch = coalesce(%(covered_batch)s, covered_batch),
    topics = coalesce(%(topics)s::jsonb, topics), uncovered = coalesce(%(uncovered)s::jsonb, uncovered)
WHERE shard = %(shard)s AND view = %(view)s
RETURNING true

-- backend --
-- This connection's own backend, as the fence row names it. A process id alone could be another's by the time it is
-- used.
SELECT jsonb_build_object('pid', pid, 'started', backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- end_old_backends --
-- Ends the backends that the fence row names. Otherwise a stopped process keeps its transaction, and so its lock, for
-- ever.
SELECT count(pg_terminate_backend(activity.pid))
FROM {leader}
CROSS JOIN LATERAL jsonb_to_recordset(backends) AS old (pid integer, started timestamptz)
JOIN pg_stat_activity AS activity ON activity.pid = old.pid AND activity.backend_start = old.started
WHERE shard = %(shard)s

-- mark --
-- Claims the next records by id, unmarked or marked by another view, and returns them: at most max_records, and no more
-- than it takes to reach max_bytes; only marked ones, when `only_marked`. Nothing comes back when nothing is due or
-- when the fence names another view; `holds_fence` tells which.
WITH due AS MATERIALIZED (
    SELECT id
    FROM (
        SELECT id, sum(size) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM (
            SELECT id, size
            FROM {outbox} AS record {measured}
            WHERE leader_id IS DISTINCT FROM %(view)s AND (leader_id IS NOT NULL OR NOT %(only_marked)s)
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
SELECT id, kafka_topic, kafka_key, CASE WHEN fits THEN kafka_value END, CASE WHEN fits THEN kafka_header_keys END,
       CASE WHEN fits THEN kafka_header_values END, {partition}
FROM marked {measured}
ORDER BY id

-- prefer_indexes --
-- For the reading connection. Outdated statistics must not make it scan the table, which may be mostly dead rows, nor
-- collect and sort the rest of a window for each of its pages. Up to Postgres 17, disabled plans cost so much that
-- Postgres would compile every such statement, for some 400 ms.
SET enable_seqscan = off;
SET enable_sort = off;
SET jit = off;
SET max_parallel_workers_per_gather = 0

-- newest_transaction_id --
-- Part of `fence`, where the outbox has the column: the highest id in it of a transaction that has not begun yet. Lower
-- ids are not looked for, since the index leads to dead rows as well, and there may be millions of them at its end.
coalesce((
    SELECT record.transaction_id::text::bigint
    FROM {outbox} AS record
    WHERE record.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY record.transaction_id DESC
    LIMIT 1
), 0)

-- look_briefly --
-- Bounds the statement that follows in this transaction.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true)

-- lowest_id --
-- The first record by id. While Postgres can't remove dead rows, this looks at all of those before it.
SELECT id FROM {outbox} ORDER BY id LIMIT 1

-- read_window --
-- The first page of a window: the records of transactions that the snapshot `after` does not see, by the index on
-- transaction_id. OFFSET 0 keeps the planner from walking the primary key instead, through all that was purged and not
-- vacuumed. The first row is no record. It tells what the statement saw, how far Postgres' log was written and durable
-- by then, which table it read, and the last id drawn. Each record tells its size. One above max_size, or that Kafka
-- would not take, comes without value and headers. So a page never holds more than max_records times max_size.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint
UNION ALL (
    SELECT id, kafka_topic, kafka_key, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}
    FROM (
        SELECT record.*, fits, size
        FROM {outbox} AS record {measured}
        WHERE (transaction_id >= pg_snapshot_xmax(%(after)s::pg_snapshot)
               OR transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(%(after)s::pg_snapshot))))
          AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())
        OFFSET 0
    ) AS due
    ORDER BY id
    LIMIT %(max_records)s
)

-- read_on --
-- A page by the primary key: of a term's first window, which is the whole table (`after` null), or a further page of a
-- window, restricted to the snapshot that the first page was read in (`within`). The rows are as above.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint
UNION ALL (
    SELECT id, kafka_topic, kafka_key, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}
    FROM (
        SELECT record.*, fits, size
        FROM {outbox} AS record {measured}
        WHERE id > %(above)s
          AND (%(within)s::pg_snapshot IS NULL OR pg_visible_in_snapshot(transaction_id, %(within)s::pg_snapshot))
          AND (%(after)s::pg_snapshot IS NULL OR NOT pg_visible_in_snapshot(transaction_id, %(after)s::pg_snapshot))
    ) AS due
    ORDER BY id
    LIMIT %(max_records)s
)

-- lengths --
-- How many records each of these transactions has in the outbox, and the last one's id.
SELECT transaction_id::text::bigint, count(*), max(id)
FROM {outbox}
WHERE transaction_id = ANY(%(transaction_ids)s::text[]::xid8[])
GROUP BY transaction_id

-- purge_published --
-- Deletes published records, or archives them, if the fence names this view: by exact ids, as far as the snapshot they
-- were read within sees their transactions. Returns whether the fence does, and how far Postgres' log is on disk.
-- Announces the watermark (null: no news) on a channel named after the outbox: the shard, the incarnation, and the
-- snapshot. One too long for a notification is left out; listeners look then.
WITH fence AS MATERIALIZED (
    SELECT shard, outbox_id, incarnation, secret FROM {leader} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox}
    WHERE {those_ids} AND pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot) AND EXISTS (SELECT FROM fence)
    {returned}
) {archived}
SELECT EXISTS (SELECT FROM fence), (pg_current_wal_flush_lsn() - '0/0')::bigint, (
    SELECT pg_notify('outbox ' || outbox_id, {announcement})
    FROM fence
    WHERE %(watermark)s::text IS NOT NULL
)

-- announcement --
-- Part of `purge_published` and `heartbeat`: the text, and a proof that its author can read the outbox's secret.
-- Anybody who may connect may notify, and listen.
concat_ws(' ', shard, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END, encode(sha256(uuid_send(secret) || sha256(
    uuid_send(secret) || convert_to(concat_ws(' ', shard, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END), 'UTF8')
)), 'hex'))

-- ids_one_by_one --
-- Part of `purge_published`: scattered ids.
id = ANY(%(ids)s)

-- ids_between --
-- Part of `purge_published`: ids so close together that their range, without the few others in it, is found sooner.
id BETWEEN %(first)s AND %(last)s AND id <> ALL(%(others)s)

-- durable --
-- Part of `read_window`, `read_on` and `flushed`: how far Postgres' log is durable, as far as this session may say so
-- without a wait. That is how far it is on disk. Where commits wait for standbys it is unknown (0), since not everybody
-- may see the standbys' positions.
CASE WHEN current_setting('synchronous_commit') = 'local' OR current_setting('synchronous_standby_names') = ''
     THEN pg_current_wal_flush_lsn() - '0/0' ELSE 0 END

-- table_read --
-- Part of `read_window` and `read_on`: the table's oid and its file's number, which TRUNCATE and every rewrite of the
-- table change.
concat_ws(' ', to_regclass(%(outbox)s)::oid, pg_relation_filenode(to_regclass(%(outbox)s)))

-- measured --
-- Part of the statements that read records. `fits`: Kafka's client may take a record with so many bytes of key, value
-- and headers. `size`: about what the part that is read takes in memory; a header takes more there than its bytes. The
-- overhead of array_send() is subtracted. The headers are measured once a record (OFFSET 0), and compressed
-- ones are unpacked for it.
CROSS JOIN LATERAL (
    SELECT bytes <= %(most_bytes)s AS fits,
           CASE WHEN bytes <= %(most_bytes)s THEN bytes + 128 * cardinality(kafka_header_keys) ELSE coalesce(octet_length(kafka_key), 0) END AS size
    FROM (
        SELECT coalesce(octet_length(kafka_key), 0)::bigint + coalesce(octet_length(kafka_value), 0)
               + greatest(0, octet_length(array_send(kafka_header_keys)) - 20 - 4 * cardinality(kafka_header_keys))
               + greatest(0, octet_length(array_send(kafka_header_values)) - 20 - 4 * cardinality(kafka_header_values)) AS bytes
        OFFSET 0
    ) AS counted
) AS measured

-- last_drawn --
-- Part of `read_window` and `read_on`: how far the sequence of the ids is, after the snapshot was taken. Ids that come
-- from no sequence all count as drawn.
(SELECT CASE WHEN sequence IS NULL THEN 9223372036854775807 ELSE coalesce(pg_sequence_last_value(sequence), 0) END
 FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence)

-- flushed --
-- How far Postgres' log is durable.
SELECT ({durable})::bigint

-- flush --
-- Writes a message that nobody reads. This statement's commit makes Postgres' log durable up to here, on its disk and,
-- where commits wait for standbys, on theirs.
SELECT (pg_logical_emit_message(true, 'airflow-outbox', '') - '0/0')::bigint

-- adopt --
-- Accepts the present history, if the fence names this view: a new incarnation, which the ledger has not seen either,
-- and the given witness. Ids in the upper half of all ids were chosen by a writer: the sequence goes on above the
-- highest of the others. The other statements of an adoption follow in the same transaction.
UPDATE {leader} AS fence
SET incarnation = greatest(incarnation, %(last_incarnation)s) + 1, halted = NULL, ledger_topic_id = %(topic_id)s, witnessed_batch = %(batch)s, ledger_offset = %(offset)s,
    highest_id = greatest(%(highest_id)s, (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904)),
    system_identifier = (pg_control_system()).system_identifier,
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
    table_oid = to_regclass(%(outbox)s)::oid, database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
    begun_view = %(view)s, watermark = NULL, covered_batch = %(batch)s, topics = jsonb_build_object(), uncovered = jsonb_build_object()
WHERE shard = %(shard)s AND view = %(view)s
RETURNING incarnation, highest_id

-- running_harvester --
-- The member that the fence row names, if one of its sessions is still there, or if it was heard of in the last
-- seconds; no row otherwise. A heartbeat from the future came before a clock was set back.
SELECT member, extract(epoch FROM clock_timestamp() - heartbeat_at)::double precision
FROM {leader}
WHERE shard = %(shard)s AND (
    EXISTS (SELECT FROM jsonb_to_recordset(backends) AS known (pid integer, started timestamptz)
            JOIN pg_stat_activity AS session ON session.pid = known.pid AND session.backend_start = known.started)
    OR heartbeat_at BETWEEN clock_timestamp() - make_interval(secs => %(silence)s) AND clock_timestamp())
FOR UPDATE

-- copied --
-- A copy's producers and ledger topic, which are its original's, and how many of its records wait or are parked.
SELECT transactional_ids, ledger_topic_id, (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM {parked} WHERE discarded_at IS NULL)
FROM {leader}
WHERE shard = %(shard)s

-- become_new_outbox --
-- Makes the outbox of a copied database a new one: with its own id, and no knowledge of a ledger, a history or
-- published records. It follows no view, so that no statement of an earlier leader does anything.
UPDATE {leader}
SET outbox_id = gen_random_uuid(), secret = gen_random_uuid(), incarnation = incarnation + 1, view = NULL, begun_view = NULL, backends = jsonb_build_array(),
    member = NULL, took_over_at = NULL, heartbeat_at = NULL, in_flight = 0, rate = 0, published = 0, last_error = NULL, last_error_at = NULL,
    handover_asked_at = NULL, delivery = NULL, transactional_ids = ARRAY[]::text[], system_identifier = NULL, timeline = NULL, table_oid = NULL,
    database_oid = NULL, ledger_topic_id = NULL, witnessed_batch = 0, ledger_offset = 0,
    highest_id = (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904), beats = 0, halted = NULL, watermark = NULL, covered_batch = 0,
    topics = jsonb_build_object(), uncovered = jsonb_build_object()
WHERE shard = %(shard)s
RETURNING outbox_id, incarnation, highest_id

-- halt --
-- Stops harvesting until an operator adopts, whoever leads: the difference found may not show any more at the next
-- look.
UPDATE {leader} SET halted = %(reason)s WHERE shard = %(shard)s AND view = %(view)s

-- adopt_transactions --
-- Gives records whose transaction has not begun yet in this database the id of this transaction.
UPDATE {outbox} SET transaction_id = pg_current_xact_id() WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot())

-- adopt_sequence --
-- Lets the sequence of the ids go on above all that was published.
SELECT setval(sequence, greatest(%(highest_id)s, coalesce(pg_sequence_last_value(sequence), 0), 1))
FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE sequence IS NOT NULL

-- note_adoption --
-- Records what was accepted, when, by whom and why.
INSERT INTO {adopted} (incarnation, differences, reason) VALUES (%(incarnation)s, %(differences)s, %(reason)s)

-- holds_fence --
-- Whether the fence names this view. Locks nothing.
SELECT view IS NOT DISTINCT FROM %(view)s FROM {leader} WHERE shard = %(shard)s

-- purge --
-- Deletes published records, or archives them, by exact ids, as long as they carry this view's mark and the fence names
-- this view. Returns whether the fence does.
WITH fence AS MATERIALIZED (
    SELECT FROM {leader} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox} WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
    {returned}
) {archived}
SELECT EXISTS (SELECT FROM fence)

-- reset --
-- Removes this view's mark from records that could not be published, so that the next mark of any view finds them.
WITH fence AS MATERIALIZED (
    SELECT FROM {leader} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), reset AS (
    UPDATE {outbox} SET leader_id = NULL WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- heartbeat --
-- Keeps the fence row's account: alive, how many records have been published, what is witnessed of the ledger, and how
-- far everything is published (null: as before), which it announces like `purge_published`. Returns operators'
-- requests, and values that show that the table was exchanged or its ids set back; no row when the fence names another
-- view.
UPDATE {leader}
SET heartbeat_at = clock_timestamp(), published = published + %(published)s, in_flight = %(in_flight)s, rate = %(rate)s,
    beats = beats + 1,
    witnessed_batch = coalesce(%(batch)s, witnessed_batch), ledger_offset = coalesce(%(offset)s, ledger_offset),
    highest_id = coalesce(%(highest_id)s, highest_id),
    watermark = coalesce(%(watermark)s::pg_snapshot, watermark), covered_batch = coalesce(%(covered_batch)s, covered_batch),
    topics = coalesce(%(topics)s::jsonb, topics), uncovered = coalesce(%(uncovered)s::jsonb, uncovered)
FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE shard = %(shard)s AND view = %(view)s
RETURNING paused, coalesce(handover_asked_at > took_over_at, false), to_regclass(%(outbox)s)::oid::bigint,
    CASE WHEN sequence IS NULL THEN 9223372036854775807
         WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0) END, beats,
    CASE WHEN %(watermark)s::text IS NOT NULL THEN
         pg_notify('outbox ' || outbox_id, {announcement}) END

-- note_error --
-- Records why this view could not go on, for `check` and operators.
UPDATE {leader}
SET last_error = %(error)s, last_error_at = clock_timestamp()
WHERE shard = %(shard)s AND view = %(view)s

-- holds_marks --
-- Whether marked records are still there. Harvesting exactly once marks none.
SELECT EXISTS (SELECT FROM {outbox} WHERE leader_id IS NOT NULL)

-- is_empty --
-- Whether every committed record has been published and purged.
SELECT NOT EXISTS (SELECT FROM {outbox})

-- is_empty_after_watermark --
-- The same where no record can be of a transaction that the watermark sees: it does not look at those transactions'
-- dead rows.
WITH known AS MATERIALIZED (
    SELECT coalesce(watermark, '1:1:') AS watermark FROM {leader} WHERE shard = %(shard)s
)
SELECT NOT EXISTS (SELECT FROM {outbox} WHERE transaction_id >= (SELECT pg_snapshot_xmax(watermark) FROM known))
   AND NOT EXISTS (SELECT FROM {outbox} WHERE transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(watermark) FROM known)))

-- commit_once --
-- Enters a job's commit. Waits for a rival that is committing. Returns no row when the same role's job and version has
-- committed before.
INSERT INTO {commits} (app_id, version, records, incarnation)
VALUES (%(app_id)s, %(version)s, %(records)s, (SELECT incarnation FROM {leader} WHERE shard = 0))
ON CONFLICT DO NOTHING
RETURNING transaction_id::text

-- earlier_commit --
-- The same role's earlier commit of a job and version, with the parts of its ticket. Incarnation 0, which no outbox is
-- ever in: nobody knows the transaction's.
SELECT entry.transaction_id::text, entry.records, fence.outbox_id, coalesce(entry.incarnation, 0)
FROM {commits} AS entry CROSS JOIN {leader} AS fence
WHERE app_id = %(app_id)s AND version = %(version)s AND owner IN (current_user, ''::pg_catalog.name) AND shard = 0

-- harvest_privileges --
-- The connected role's rights on the tables, as the harvester needs them.
SELECT has_table_privilege(%(outbox)s, 'SELECT') AND has_table_privilege(%(outbox)s, 'DELETE')
       AND has_column_privilege(%(outbox)s, 'leader_id', 'UPDATE') AS outbox,
       has_table_privilege(%(leader)s, 'SELECT') AND has_table_privilege(%(leader)s, 'UPDATE') AS leader

-- lock_name --
-- Lets one process at a time make or migrate the tables of an outbox; held to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))

-- schema_exists --
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)

-- create_schema --
CREATE SCHEMA {schema}

-- create_staging_schema --
CREATE SCHEMA {staging} AUTHORIZATION {owner}

-- staging_schema --
-- The owner of the schema in which jobs stage (null: it is not there), and whether that is the outbox's owner or a
-- superuser; the outbox's owner; and whether the connected role may make schemas.
SELECT holder.oid::regrole::text, coalesce(holder.rolsuper OR holder.oid = relowner, true), relowner::regrole::text,
       has_database_privilege(current_database(), 'CREATE')
FROM pg_class
LEFT JOIN pg_namespace ON nspname = %(staging)s
LEFT JOIN pg_roles AS holder ON holder.oid = nspowner
WHERE pg_class.oid = to_regclass(%(table)s)

-- set_schema_version --
UPDATE {leader} SET schema_version = %(version)s

-- where_it_is --
-- A table's schema, and the schema and name of the sequence that its ids are drawn from.
SELECT nspname, (
    SELECT ARRAY[place.nspname, sequence.relname]::text[]
    FROM pg_class AS sequence JOIN pg_namespace AS place ON place.oid = sequence.relnamespace
    WHERE sequence.oid = to_regclass(pg_get_serial_sequence(%(table)s, 'id'))
)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(%(table)s)

-- backend_pid --
SELECT pg_catalog.pg_backend_pid()

-- sequence_cache --
-- How many ids a session draws at once.
SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass(pg_get_serial_sequence(%(outbox)s, 'id'))

-- encoding --
SELECT current_setting('server_encoding')

-- synchronous_standbys --
-- The standbys that commits wait for, as the server is told to find them; empty when there are none.
SELECT current_setting('synchronous_standby_names')

-- pending_topics --
-- The topics of waiting records, as far as a look at the first ones tells.
SELECT DISTINCT kafka_topic FROM (SELECT kafka_topic FROM {outbox} ORDER BY id LIMIT %(limit)s) AS head

-- ask_pause --
-- Asks every leader to pause or to go on; it sees that with its next heartbeat.
UPDATE {leader} SET paused = %(paused)s

-- ask_handover --
-- Asks a shard's leader to let another member lead; it sees that with its next heartbeat.
UPDATE {leader} SET handover_asked_at = clock_timestamp() WHERE shard = %(shard)s

-- status --
-- One row per shard.
SELECT shard, member, view, took_over_at, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silent_for,
       published, in_flight, rate, paused, last_error, last_error_at
FROM {leader}
ORDER BY shard

-- backlog --
-- How many records wait, and for how many seconds the oldest has waited. A writer may give any time: infinity is
-- ignored, and a time in the future counts as now.
SELECT count, extract(epoch FROM clock_timestamp() - CASE WHEN oldest > clock_timestamp() THEN clock_timestamp() ELSE oldest END)::float8
FROM (SELECT count(*), min(create_time) FILTER (WHERE isfinite(create_time)) AS oldest FROM {outbox}) AS waiting

-- dead_rows --
-- About how many purged rows still take up room in the outbox, since no vacuum has removed them.
SELECT pg_stat_get_dead_tuples(to_regclass(%(outbox)s))

-- oldest_holder --
-- The session (with an open transaction or statement), prepared transaction or replication slot that has kept Postgres
-- from removing dead rows for longest, and for how many seconds (nobody knows that of a slot). Other roles' sessions
-- show only to members of pg_read_all_stats.
SELECT kind, name, pid, seconds::float8
FROM (
    SELECT 'session' AS kind, concat_ws(', ', usename, nullif(application_name, ''), state) AS name, pid,
           extract(epoch FROM clock_timestamp() - xact_start) AS seconds,
           greatest(age(backend_xid), age(backend_xmin)) AS transactions
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared transaction', gid, NULL, extract(epoch FROM clock_timestamp() - prepared), age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, active_pid, NULL, age(xmin)
    FROM pg_replication_slots
) AS holder
WHERE transactions IS NOT NULL
ORDER BY transactions DESC, seconds DESC
LIMIT 1

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
