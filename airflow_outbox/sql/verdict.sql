-- The facts that the verdict and the metrics are made of. Each statement looks at a bounded number of rows, however much waits.

-- facts --
-- What the rows of the shards and the outbox say, the shards' in arrays by their numbers; and why nobody can tell what is
-- published (null: it can be told). A history that differs is no doubt about an outbox that is harvested at least once.
-- The bounds are those that the leaders are configured with. `clusters` has each cluster's part, and the last batch that it
-- is known to have, of all shards together; of one that is owed records, too, since when the oldest batch is kept that it
-- lacks, and whether somebody wants it to be attached. `positions` is what replicators of positions saw last.
SELECT clock_timestamp() AS now, pg_is_in_recovery() AS is_standby, state.paused, state.paused_at,
       coalesce(state.halted, min(CASE WHEN fence.delivery = 'exactly_once' THEN told.doubt END)) AS doubt, max(fence.layout) AS layout,
       array_agg(shard ORDER BY shard) AS shards, array_agg(fence.member ORDER BY shard) AS leaders, array_agg(fence.heartbeat_at ORDER BY shard) AS heard_ats,
       array_agg(fence.took_over_at ORDER BY shard) AS took_over_ats, array_agg(fence.published_at ORDER BY shard) AS published_ats,
       array_agg(fence.last_error ORDER BY shard) AS last_errors, array_agg(fence.last_error_at ORDER BY shard) AS last_error_ats,
       array_agg(fence.in_flight ORDER BY shard) AS in_flights, array_agg(fence.rate ORDER BY shard) AS shard_rates,
       array_agg(fence.published ORDER BY shard) AS publisheds,
       min(fence.lagging_after) AS lagging_after, min(fence.stalled_after) AS stalled_after, min(fence.silence) AS silence,
       (SELECT jsonb_agg(report || jsonb_build_object('member', member, 'told_at', told_at)) FROM {positions}) AS positions, (
           SELECT jsonb_object_agg(name, to_jsonb(cluster) || jsonb_build_object(
               'batches', batches, 'is_wanted', state.attach_wanted IS NOT DISTINCT FROM name,
               'owed_since', CASE WHEN part = 'owed' THEN (
                   SELECT min(kept_at) FROM {ledger} AS ledger CROSS JOIN LATERAL (
                       SELECT kept_at FROM {owed} AS kept WHERE kept.shard = ledger.shard AND batch > witnessed_batch ORDER BY batch LIMIT 1
                   ) AS oldest
                   WHERE ledger.cluster = name
               ) END
           ))
           FROM {cluster} AS cluster
           JOIN (SELECT cluster AS name, sum(witnessed_batch) AS batches FROM {ledger} GROUP BY cluster) AS known USING (name)
       ) AS clusters
FROM {shard} AS fence
CROSS JOIN {state} AS state
JOIN {published} AS told USING (shard)
GROUP BY state.paused, state.paused_at, state.halted, state.attach_wanted

-- backlog --
-- How many records wait, counted by the primary key up to a bound and one more, and for how many seconds the oldest of
-- the first hundred has. A writer may give any time: infinity is ignored, and a time in the future counts as now. No
-- shard is told apart here.
SELECT NULL::integer AS shard, (SELECT count(*) FROM (SELECT id FROM {outbox} AS record WHERE {unless_undeleted} ORDER BY id LIMIT %(most)s + 1) AS counted) AS records, {age} AS oldest_age
FROM (SELECT create_time FROM {outbox} AS record WHERE {unless_undeleted} ORDER BY id LIMIT 100) AS first
WHERE isfinite(create_time)

-- backlog_after_watermark --
-- The same where no record can be of a transaction that the watermark sees: it does not look at those transactions' dead
-- rows. One row a shard. Several shards share the bound; in each the oldest is that of the first ten of each slot, and
-- the indexes on slots lead to its records.
WITH known AS MATERIALIZED (
    SELECT shard, slots, pg_snapshot_xmax(watermark) AS next, ARRAY(SELECT pg_snapshot_xip(watermark)) AS running, %(most)s / count(*) OVER () + 1 AS most
    FROM (SELECT shard, slots, {known_watermark} AS watermark FROM {published} AS told JOIN {shard} USING (shard)) AS present
)
SELECT known.shard, waiting.records, waiting.oldest_age
FROM known CROSS JOIN LATERAL (
    SELECT (
        SELECT count(*) FROM (
            (SELECT FROM {outbox} AS record WHERE transaction_id = ANY(running) AND {unless_undeleted} LIMIT most)
            UNION ALL
            (SELECT FROM {outbox} AS record WHERE transaction_id >= next AND {unless_undeleted} ORDER BY transaction_id LIMIT most)
        ) AS counted
    ) AS records, {age} AS oldest_age
    FROM (
        (SELECT create_time FROM {outbox} AS record WHERE transaction_id = ANY(running) AND {unless_undeleted} LIMIT 100)
        UNION ALL
        (SELECT create_time FROM {outbox} AS record WHERE transaction_id >= next AND {unless_undeleted} ORDER BY transaction_id LIMIT 100)
    ) AS first
    WHERE isfinite(create_time)
) AS waiting
WHERE known.slots IS NULL
UNION ALL
SELECT known.shard, waiting.records, waiting.oldest_age
FROM known CROSS JOIN LATERAL (
    SELECT (
        SELECT count(*) FROM (
            SELECT FROM unnest(slots) AS own (slot) CROSS JOIN LATERAL (
                (SELECT FROM {outbox} AS record WHERE {slot} = own.slot AND transaction_id = ANY(running) AND {unless_undeleted} LIMIT most)
                UNION ALL
                (SELECT FROM {outbox} AS record WHERE {slot} = own.slot AND transaction_id >= next AND {unless_undeleted} ORDER BY transaction_id LIMIT most)
            ) AS page
            LIMIT most
        ) AS counted
    ) AS records, {age} AS oldest_age
    FROM unnest(slots) AS own (slot) CROSS JOIN LATERAL (
        (SELECT create_time FROM {outbox} AS record WHERE {slot} = own.slot AND transaction_id = ANY(running) AND {unless_undeleted} LIMIT 10)
        UNION ALL
        (SELECT create_time FROM {outbox} AS record WHERE {slot} = own.slot AND transaction_id >= next AND {unless_undeleted} ORDER BY transaction_id LIMIT 10)
    ) AS first
    WHERE isfinite(create_time)
) AS waiting
WHERE known.slots IS NOT NULL

-- age --
-- Part of `backlog`. At most some hundred years: a writer may give any time, and calendars end.
CASE WHEN count(*) > 0 THEN least(3e9, greatest(0, extract(epoch FROM clock_timestamp() - min(create_time)))) END::float8

-- parked --
-- Refused records that wait, by shard and cause, of at most this many: how many, since when, and why one of them was
-- refused; and likewise published ones that Postgres would not delete. Where there is one shard, no slot is reckoned.
SELECT shard, cause, count(*) AS records, min(parked_at) AS since, min(coalesce(reason, cause)) AS reason
FROM (
    (
        SELECT CASE WHEN shards = 1 THEN 0 ELSE mod({slot}, shards) END AS shard, cause, parked_at, reason
        FROM {parked} CROSS JOIN (SELECT shards FROM {state}) AS present
        WHERE discarded_at IS NULL AND cause IS NOT NULL
        ORDER BY cause, kafka_topic
        LIMIT %(most_parked)s
    ) UNION ALL (
        SELECT CASE WHEN shard < shards THEN shard ELSE 0 END, 'undeleted', noted_at, reason
        FROM {undeleted} CROSS JOIN (SELECT shards FROM {state}) AS present
        WHERE published
        ORDER BY id
        LIMIT %(most_parked)s
    )
) AS refused
GROUP BY shard, cause
ORDER BY shard, cause

-- troubles --
-- The members' troubles, the oldest first.
SELECT member, kind, error, since, told_at, shard FROM {trouble} ORDER BY since, member

-- brief --
-- For the statements that follow in this transaction: none takes long, and none scans a table that has an index.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true), set_config('enable_seqscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('jit', 'off', true)
