-- Many outboxes in one process: find them, look whether any has records, and keep those that rest.
-- {outbox}, {shard}, {state}, {parked}: the tables of one of them.

-- begin_session --
-- For the connection that looks at all outboxes. A statement that has to wait for a lock gives up at once, because the
-- other outboxes wait behind it. What it writes are heartbeats: none is missed if a crash loses the last ones.
SET synchronous_commit = off;
SET lock_timeout = '100ms';
SET statement_timeout = '3s';
SET enable_seqscan = off

-- database --
-- What tells this database from others, also after a fail-over.
SELECT (pg_control_system()).system_identifier, oid::bigint FROM pg_database WHERE datname = current_database()

-- find --
-- Every table that has the others of an outbox beside it, with its schema, and the identity of `<outbox>_state`: a table
-- that was dropped and made again has another.
SELECT place.nspname::text, outbox.relname::text, state.oid::bigint
FROM pg_class AS state
JOIN pg_namespace AS place ON place.oid = state.relnamespace
JOIN pg_class AS outbox ON outbox.relnamespace = place.oid AND outbox.relname = left(state.relname, -6) AND outbox.relkind IN ('r', 'p')
JOIN pg_class AS shard ON shard.relnamespace = place.oid AND shard.relname = left(state.relname, -6) || '_shard' AND shard.relkind = 'r'
WHERE state.relkind = 'r' AND right(state.relname, 6) = '_state'
ORDER BY 1, 2

-- waits --
-- Part of the look at several outboxes: whether this one has a record. By the primary key, so that dead rows are passed
-- once.
coalesce((SELECT true FROM {outbox} AS record WHERE {unless_undeleted} ORDER BY id LIMIT 1), false)

-- look --
-- The look itself.
SELECT {waits}

-- take_up --
-- Lets this member hold an outbox that rests, under a view of its own, unless another member is alive. No producer is
-- fenced: a batch of an earlier view that is committed, and not purged, is still in the outbox, which is then woken. A row
-- that somebody holds is left for the next time. Returns whether it was taken, and who has held it until now.
WITH free AS (
    SELECT shard FROM {shard}
    WHERE shard = 0 AND outbox_id = %(outbox_id)s AND (
        member IS NULL OR member = %(member)s OR heartbeat_at IS NULL
        OR abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) > %(silence)s
    )
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {shard} AS fence
    SET view = %(view)s, slots_view = %(view)s, backends = '[]', member = %(member)s, took_over_at = clock_timestamp(),
        heartbeat_at = clock_timestamp(), in_flight = 0, rate = 0, lagging_after = %(lagging_after)s, stalled_after = %(stalled_after)s,
        silence = %(silence)s
    FROM free WHERE fence.shard = free.shard
    RETURNING true
)
SELECT EXISTS (SELECT FROM taken), member FROM {shard} WHERE shard = 0 AND outbox_id = %(outbox_id)s

-- rest --
-- Keeps an outbox that rests: its holder is alive. While it has no record, all that this statement's snapshot sees is
-- published, so that the watermark may go on, unless the history is in doubt. Returns whether the fence still names the
-- view, why it is halted, whether it is paused, and whether parked records wait for a leader. While somebody holds the
-- row, nothing is written.
WITH kept AS (
    UPDATE {shard} AS fence
    SET heartbeat_at = clock_timestamp(),
        watermark = CASE
            WHEN watermark IS NOT NULL AND delivery = 'exactly_once' AND uncovered = '{{}}'::jsonb AND NOT {waits}
                 AND NOT EXISTS (SELECT FROM {published} AS told WHERE told.shard = 0 AND told.doubt IS NOT NULL)
                THEN pg_current_snapshot()
            ELSE watermark
        END
    FROM (SELECT shard FROM {shard} WHERE shard = 0 AND view = %(view)s FOR UPDATE SKIP LOCKED) AS free
    WHERE fence.shard = free.shard
)
SELECT view IS NOT DISTINCT FROM %(view)s, halted, paused, EXISTS (
    SELECT FROM {parked} WHERE discarded_at IS NULL AND requested IS NOT NULL
) OR EXISTS (
    SELECT FROM {parked} WHERE discarded_at IS NULL AND retry_at <= clock_timestamp()
)
FROM {shard} AS fence CROSS JOIN {state} AS state WHERE shard = 0

-- let_go --
-- Nobody leads an outbox that rested, if the fence still names this view.
UPDATE {shard} SET member = NULL WHERE shard = 0 AND view = %(view)s
