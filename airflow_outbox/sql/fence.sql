-- The fence row is the shard's: who leads, and what a leader finds and records in it, in the ledger's row of the shard,
-- and in the outbox's row. {shard}, {ledger}, {state}: their tables.
-- `view` is the term of leadership that asks. A statement that changes anything locks the fence row (FOR SHARE, or by
-- its UPDATE) and goes by what it says once it has the lock. So a successor's take-over, an UPDATE of the same row,
-- comes either before it or after it, never between.
-- There are no deadlocks, for these reasons:
-- - All take their locks in one order: fence rows by number, the ledger's row, the outbox's row, records. Within a
--   statement each step needs the result of the one before, so Postgres can't run them in another order.
-- - None locks a fence row FOR SHARE and changes it afterwards. Two that did so would wait for each other.
-- - An operator's pause locks the outbox's row alone, a request for a handover the fence row alone.
-- A take-over waits for the fence row alone.

-- identity --
-- The outbox's id, schema version and incarnation, its layout, how many promotions there were, and the primary.
SELECT outbox_id, schema_version, incarnation, layout, shards, promotions, (SELECT name FROM {cluster} WHERE part = 'primary') FROM {state}

-- present --
-- Part of statements about the history: the database's, and that of the table in it, as it is now.
SELECT (pg_control_system()).system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline,
       to_regclass(%(outbox)s)::oid AS table_oid, (SELECT oid FROM pg_database WHERE datname = current_database()) AS database_oid

-- take_over --
-- Writes a new view and its backends into the fence row. It waits for a statement of the old view that holds the row.
-- No shard without slots is led. While another number of shards is asked for, or a cluster is about to count, only the
-- first is: its leader, who sees to that, takes over all (`reshards`). Where no cluster is asked for, `attach_closing` was
-- left behind by a version that closed for a refused one. `after`, unless empty, holds the only views that may be followed.
-- `outbox_id`, unless null, is the outbox that the harvester was started for. An incarnation's first leader records the
-- history, unless that would have to wait for somebody who holds the outbox's row: then `begin` does.
WITH taken AS (
    UPDATE {shard}
    SET view = %(view)s, slots_view = %(view)s, backends = %(backends)s, member = %(member)s, took_over_at = clock_timestamp(),
        heartbeat_at = clock_timestamp(), in_flight = 0, rate = 0, lagging_after = coalesce(%(lagging_after)s, lagging_after),
        stalled_after = coalesce(%(stalled_after)s, stalled_after), silence = coalesce(%(silence)s, silence)
    WHERE shard = %(shard)s AND (cardinality(%(after)s::uuid[]) = 0 OR view = ANY(%(after)s))
          AND (%(outbox_id)s::uuid IS NULL OR outbox_id = %(outbox_id)s) AND (slots IS DISTINCT FROM ARRAY[]::integer[] OR %(reshards)s)
          AND (%(layout)s::integer IS NULL OR layout = %(layout)s)
          AND (shard = 0 OR %(reshards)s OR NOT EXISTS (SELECT FROM {state} WHERE shards_wanted IS NOT NULL OR attach_closing AND attach_wanted IS NOT NULL))
    RETURNING true
), unrecorded AS (
    SELECT FROM {state} WHERE system_identifier IS NULL AND EXISTS (SELECT FROM taken) FOR UPDATE SKIP LOCKED
), recorded AS (
    UPDATE {state} SET (system_identifier, timeline, table_oid, database_oid) = ({present}) WHERE EXISTS (SELECT FROM unrecorded)
)
SELECT true FROM taken

-- fence --
-- The fence row, if it names this view, with the ledger's row and the outbox's (nulls: that row is missing), and what
-- the database says of itself now: its history, and how far its ids and transaction ids have come. Ids that come from
-- no sequence never fall back. Without the right to read the sequence, its value is null.
SELECT paused, coalesce(handover_asked_at > took_over_at, false) AS handover, fence.outbox_id, fence.incarnation, delivery,
       transactional_ids, state.system_identifier, state.timeline, state.table_oid::bigint, state.database_oid::bigint,
       present.system_identifier AS present_system_identifier, present.timeline AS present_timeline,
       present.table_oid::bigint AS present_table_oid, present.database_oid::bigint AS present_database_oid,
       ledger_topic_id, witnessed_batch, ledger_offset, highest_id,
       CASE WHEN sequence IS NULL THEN 9223372036854775807
            WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0)
       END AS last_drawn,
       beats, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction_id,
       {newest_transaction_id} AS newest_transaction_id, halted, watermark::text, covered_batch, topics, uncovered, fence.layout, slots, shards_wanted,
       begun_view, begun_primary, primary_cluster, membership, attach_wanted, attach_how, attach_closing, (
           SELECT jsonb_object_agg(member.name, coalesce(to_jsonb(other), jsonb_build_object()) || jsonb_build_object('part', part))
           FROM {cluster} AS member LEFT JOIN {ledger} AS other ON other.cluster = member.name AND other.shard = fence.shard
           WHERE member.name <> primary_cluster
       ) AS others, ARRAY(
           SELECT DISTINCT shard FROM {shard} AS other JOIN {ledger} AS known USING (shard)
           WHERE other.slots = ARRAY[]::integer[] AND witnessed_batch > 0
           ORDER BY shard
       ) AS dormant
FROM {shard} AS fence
LEFT JOIN {ledger} AS ledger ON ledger.shard = fence.shard AND cluster = primary_cluster
LEFT JOIN {state} AS state ON true
CROSS JOIN ({present}) AS present
CROSS JOIN CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE fence.shard = %(shard)s AND view = %(view)s

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
-- Records how the term harvests, which ledger it goes by, and its producers' ids (null: as before); on the backups,
-- too, if there are any. From now on only this view can publish records that the witness does not know of. A history that the take-over could not record is
-- recorded; one from an earlier release, without the database's oid, gets it.
WITH begun AS (
    UPDATE {shard}
    SET begun_view = %(view)s, begun_primary = primary_cluster, delivery = %(delivery)s, highest_id = %(highest_id)s, beats = beats + 1,
        watermark = coalesce(%(watermark)s::pg_snapshot, watermark), covered_batch = coalesce(%(covered_batch)s, covered_batch),
        topics = coalesce(%(topics)s::jsonb, topics), uncovered = coalesce(%(uncovered)s::jsonb, uncovered)
    WHERE shard = %(shard)s AND view = %(view)s
    RETURNING shard, primary_cluster
), noted AS (
    UPDATE {ledger} AS ledger
    SET transactional_ids = coalesce(%(transactional_ids)s::text[], transactional_ids), ledger_topic_id = %(topic_id)s,
        witnessed_batch = %(batch)s, ledger_offset = %(offset)s
    FROM begun
    WHERE ledger.shard = begun.shard AND cluster = primary_cluster
    RETURNING true
), noted_on_backups AS (
    UPDATE {ledger} AS ledger
    SET transactional_ids = backup.transactional_ids, ledger_topic_id = backup.ledger_topic_id, witnessed_batch = backup.witnessed_batch,
        ledger_offset = backup.ledger_offset
    FROM begun, jsonb_populate_recordset(NULL::{ledger}, %(backups)s::jsonb) AS backup
    WHERE ledger.shard = begun.shard AND ledger.cluster = backup.cluster
), recorded AS (
    UPDATE {state} AS state
    SET system_identifier = coalesce(state.system_identifier, present.system_identifier), timeline = coalesce(state.timeline, present.timeline),
        table_oid = coalesce(state.table_oid, present.table_oid), database_oid = present.database_oid
    FROM noted, ({present}) AS present
    WHERE state.system_identifier IS NULL OR state.database_oid IS NULL
)
SELECT true FROM noted

-- backend --
-- This connection's own backend, as the fence row names it. A process id alone could be another's by the time it is
-- used.
SELECT jsonb_build_object('pid', pid, 'started', backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- end_old_backends --
-- Ends the backends that the fence row names. Otherwise a stopped process keeps its transaction, and so its lock, for
-- ever.
SELECT count(pg_terminate_backend(activity.pid))
FROM {shard}
CROSS JOIN LATERAL jsonb_to_recordset(backends) AS old (pid integer, started timestamptz)
JOIN pg_stat_activity AS activity ON activity.pid = old.pid AND activity.backend_start = old.started
WHERE shard = %(shard)s

-- holds_fence --
-- Whether the fence names this view. Locks nothing.
SELECT view IS NOT DISTINCT FROM %(view)s FROM {shard} WHERE shard = %(shard)s

-- looks --
-- What each shard that has slots shows to all members: its view, whether anybody leads, for how long the leader has been
-- silent, and whether an operator has asked for a handover since it took over. Locks nothing.
SELECT shard, view, member IS NOT NULL AS is_led, coalesce(EXTRACT(epoch FROM clock_timestamp() - heartbeat_at), 0)::float8 AS silent_for,
       coalesce(handover_asked_at > took_over_at, false) AS hands_over
FROM {shard} WHERE slots IS DISTINCT FROM ARRAY[]::integer[]
ORDER BY shard

-- heartbeat --
-- Keeps the fence row's account: alive, how many records have been published, and how far everything is published,
-- which it announces like `purge_published`; and the ledger's: what is witnessed of it (nulls: as before). Returns
-- operators' requests, and values that show that the table was exchanged or its ids set back; no row when the fence
-- names another view. The last error is over once something is published, or nothing is in flight.
WITH beat AS (
    UPDATE {shard}
    SET heartbeat_at = clock_timestamp(), published = published + %(published)s, in_flight = %(in_flight)s, rate = %(rate)s,
        published_at = CASE WHEN %(published)s > 0 THEN clock_timestamp() ELSE published_at END,
        last_error = CASE WHEN %(published)s = 0 AND %(in_flight)s > 0 THEN last_error END,
        last_error_at = CASE WHEN %(published)s = 0 AND %(in_flight)s > 0 THEN last_error_at END,
        beats = beats + 1, highest_id = coalesce(%(highest_id)s, highest_id),
        watermark = coalesce(%(watermark)s::pg_snapshot, watermark), covered_batch = coalesce(%(covered_batch)s, covered_batch),
        topics = coalesce(%(topics)s::jsonb, topics), uncovered = coalesce(%(uncovered)s::jsonb, uncovered)
    FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
    WHERE shard = %(shard)s AND view = %(view)s
    RETURNING shard, primary_cluster, coalesce(handover_asked_at > took_over_at, false) AS handover,
        to_regclass(%(outbox)s)::oid::bigint AS present_table_oid,
        CASE WHEN sequence IS NULL THEN 9223372036854775807
             WHEN has_sequence_privilege(sequence, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(sequence), 0)
        END AS last_drawn, beats,
        CASE WHEN %(watermark)s::text IS NOT NULL THEN
             pg_notify({channel}, {announcement}) END AS announced
), witnessed AS (
    UPDATE {ledger} AS ledger
    SET witnessed_batch = %(batch)s, ledger_offset = %(offset)s
    FROM beat
    WHERE %(batch)s::bigint IS NOT NULL AND ledger.shard = beat.shard AND cluster = primary_cluster
), witnessed_on_backups AS (
    UPDATE {ledger} AS ledger
    SET witnessed_batch = backup.witnessed_batch, ledger_offset = backup.ledger_offset
    FROM beat, jsonb_populate_recordset(NULL::{ledger}, %(backups)s::jsonb) AS backup
    WHERE ledger.shard = beat.shard AND ledger.cluster = backup.cluster
)
SELECT paused, handover, present_table_oid, last_drawn, beats, shards_wanted, attach_wanted, attach_how, attach_closing, halted FROM beat CROSS JOIN {state}

-- channel --
-- Part of `purge_published` and `heartbeat`: shards of several are announced on another channel than one that is alone, so
-- that a listener of an earlier release does not take one for all.
CASE WHEN slots IS NULL THEN 'outbox ' ELSE 'outbox shards ' END || outbox_id

-- announcement --
-- Part of `purge_published` and `heartbeat`: the text, with the layout in the second place where there are several
-- shards, and a proof that its author can read the outbox's secret. Anybody who may connect may notify, and listen.
concat_ws(' ', shard, CASE WHEN slots IS NOT NULL THEN layout END, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END, encode(sha256(uuid_send(secret) || sha256(
    uuid_send(secret) || convert_to(concat_ws(' ', shard, CASE WHEN slots IS NOT NULL THEN layout END, incarnation, CASE WHEN length(%(watermark)s::text) < 7800 THEN %(watermark)s::text END), 'UTF8')
)), 'hex'))

-- leave --
-- Ends a leadership gracefully: nobody leads, and nothing is in flight, if the fence still names this view.
UPDATE {shard} SET member = NULL, in_flight = 0, rate = 0 WHERE shard = %(shard)s AND view = %(view)s

-- halt --
-- Stops harvesting until an operator adopts, whoever leads: the difference found may not show any more at the next
-- look.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
)
UPDATE {state} SET halted = %(reason)s WHERE EXISTS (SELECT FROM fence)

-- note_error --
-- Records why this view could not go on. While the reason is the same, so is its time.
UPDATE {shard}
SET last_error = %(error)s, last_error_at = CASE WHEN last_error = %(error)s THEN last_error_at ELSE clock_timestamp() END
WHERE shard = %(shard)s AND view = %(view)s
