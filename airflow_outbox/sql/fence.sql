-- The fence row: who leads, and what a leader finds and records in it. {leader}: its table.
-- `view` is the term of leadership that asks. A statement that changes anything locks the fence row (FOR SHARE) and
-- goes by what it says once it has the lock. So a successor's take-over, an UPDATE of the same row, comes either before
-- it or after it, never between.

-- identity --
-- The outbox's id, schema version and incarnation.
SELECT outbox_id, schema_version, incarnation FROM {leader} WHERE shard = 0

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
SELECT paused, coalesce(handover_asked_at > took_over_at, false) AS handover, outbox_id, incarnation, delivery,
       transactional_ids, system_identifier, timeline, table_oid::bigint, database_oid::bigint,
       (pg_control_system()).system_identifier AS present_system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS present_timeline,
       to_regclass(%(outbox)s)::oid::bigint AS present_table_oid,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS present_database_oid,
       ledger_topic_id, witnessed_batch, ledger_offset, highest_id,
       CASE WHEN sequence IS NULL THEN 9223372036854775807
            WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0)
       END AS last_drawn,
       beats, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction_id,
       {newest_transaction_id} AS newest_transaction_id, halted, watermark::text, covered_batch, topics, uncovered,
       begun_view
FROM {leader}, CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE shard = %(shard)s AND view = %(view)s

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

-- holds_fence --
-- Whether the fence names this view. Locks nothing.
SELECT view IS NOT DISTINCT FROM %(view)s FROM {leader} WHERE shard = %(shard)s

-- heartbeat --
-- Keeps the fence row's account: alive, how many records have been published, what is witnessed of the ledger, and how
-- far everything is published (null: as before), which it announces like `purge_published`. Returns operators'
-- requests, and values that show that the table was exchanged or its ids set back; no row when the fence names another
-- view. The last error is over once something is published, or nothing is in flight.
UPDATE {leader}
SET heartbeat_at = clock_timestamp(), published = published + %(published)s, in_flight = %(in_flight)s, rate = %(rate)s,
    published_at = CASE WHEN %(published)s > 0 THEN clock_timestamp() ELSE published_at END,
    last_error = CASE WHEN %(published)s = 0 AND %(in_flight)s > 0 THEN last_error END,
    last_error_at = CASE WHEN %(published)s = 0 AND %(in_flight)s > 0 THEN last_error_at END,
    beats = beats + 1,
    witnessed_batch = coalesce(%(batch)s, witnessed_batch), ledger_offset = coalesce(%(offset)s, ledger_offset),
    highest_id = coalesce(%(highest_id)s, highest_id),
    watermark = coalesce(%(watermark)s::pg_snapshot, watermark), covered_batch = coalesce(%(covered_batch)s, covered_batch),
    topics = coalesce(%(topics)s::jsonb, topics), uncovered = coalesce(%(uncovered)s::jsonb, uncovered)
FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE shard = %(shard)s AND view = %(view)s
RETURNING paused, coalesce(handover_asked_at > took_over_at, false) AS handover,
    to_regclass(%(outbox)s)::oid::bigint AS present_table_oid,
    CASE WHEN sequence IS NULL THEN 9223372036854775807
         WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0)
    END AS last_drawn, beats,
    CASE WHEN %(watermark)s::text IS NOT NULL THEN
         pg_notify('outbox ' || outbox_id, {announcement}) END AS announced

-- announcement --
-- Part of `purge_published` and `heartbeat`: the text, and a proof that its author can read the outbox's secret.
-- Anybody who may connect may notify, and listen.
concat_ws(' ', shard, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END, encode(sha256(uuid_send(secret) || sha256(
    uuid_send(secret) || convert_to(concat_ws(' ', shard, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END), 'UTF8')
)), 'hex'))

-- leave --
-- Ends a leadership in order: nobody leads, and nothing is in flight any more, if the fence still names this view.
UPDATE {leader} SET member = NULL, in_flight = 0, rate = 0 WHERE shard = %(shard)s AND view = %(view)s

-- halt --
-- Stops harvesting until an operator adopts, whoever leads: the difference found may not show any more at the next
-- look.
UPDATE {leader} SET halted = %(reason)s WHERE shard = %(shard)s AND view = %(view)s

-- note_error --
-- Records why this view could not go on. While the reason is the same, so is its time.
UPDATE {leader}
SET last_error = %(error)s, last_error_at = CASE WHEN last_error = %(error)s THEN last_error_at ELSE clock_timestamp() END
WHERE shard = %(shard)s AND view = %(view)s
