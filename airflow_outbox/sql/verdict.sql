-- The facts that the verdict is made of. Each statement looks at a bounded number of rows, however much waits.

-- facts --
-- What the rows of the shard and the outbox say, and why nobody can tell what is published (null: it can be told). A history that differs is
-- no doubt about an outbox that is harvested at least once.
SELECT clock_timestamp() AS now, pg_is_in_recovery() AS is_standby, fence.member, fence.heartbeat_at AS heard_at, fence.took_over_at,
       fence.published_at, state.paused, state.paused_at,
       coalesce(state.halted, CASE WHEN fence.delivery = 'exactly_once' THEN told.doubt END) AS doubt, fence.last_error, fence.last_error_at
FROM {shard} AS fence
CROSS JOIN {state} AS state
JOIN {published} AS told USING (shard)
WHERE shard = %(shard)s

-- backlog --
-- How many records wait, counted by the primary key up to a bound and one more, and for how many seconds the oldest of
-- the first hundred has. A writer may give any time: infinity is ignored, and a time in the future counts as now.
SELECT (SELECT count(*) FROM (SELECT id FROM {outbox} ORDER BY id LIMIT %(most)s + 1) AS counted) AS records, {age} AS oldest_age
FROM (SELECT create_time FROM {outbox} ORDER BY id LIMIT 100) AS first
WHERE isfinite(create_time)

-- backlog_after_watermark --
-- The same where no record can be of a transaction that the watermark sees: it does not look at those transactions'
-- dead rows.
WITH known AS MATERIALIZED (
    SELECT coalesce(watermark, '1:1:') AS watermark FROM {shard} WHERE shard = %(shard)s
), first AS (
    (SELECT create_time FROM {outbox} WHERE transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(watermark) FROM known)) LIMIT 100)
    UNION ALL
    (SELECT create_time FROM {outbox} WHERE transaction_id >= (SELECT pg_snapshot_xmax(watermark) FROM known) ORDER BY transaction_id LIMIT 100)
), counted AS (
    (SELECT transaction_id FROM {outbox} WHERE transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(watermark) FROM known)) LIMIT %(most)s + 1)
    UNION ALL
    (SELECT transaction_id FROM {outbox} WHERE transaction_id >= (SELECT pg_snapshot_xmax(watermark) FROM known)
     ORDER BY transaction_id LIMIT %(most)s + 1)
)
SELECT (SELECT count(*) FROM counted) AS records, {age} AS oldest_age FROM first WHERE isfinite(create_time)

-- age --
-- Part of `backlog`.
CASE WHEN count(*) > 0 THEN greatest(0, extract(epoch FROM clock_timestamp() - min(create_time))) END::float8

-- parked --
-- Refused records that wait, by cause, of at most so many: how many, since when, and why one of them was refused.
SELECT cause, count(*) AS records, min(parked_at) AS since, min(coalesce(reason, cause)) AS reason
FROM (
    SELECT cause, parked_at, reason FROM {parked} WHERE discarded_at IS NULL AND cause IS NOT NULL ORDER BY cause, kafka_topic LIMIT %(most)s
) AS refused
GROUP BY cause
ORDER BY cause

-- troubles --
-- What members say that they can't do, the oldest first.
SELECT member, kind, error, since, told_at FROM {trouble} ORDER BY since, member

-- brief --
-- For the statements that follow in this transaction: none takes long, and none scans a table that has an index.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true), set_config('enable_seqscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true)
