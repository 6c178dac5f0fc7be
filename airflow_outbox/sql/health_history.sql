-- The history of the last day: how the outbox was doing, noted by whoever leads.

-- note --
-- Notes how shards are doing now, unless these ten seconds have their row, or another leads the shard than was seen. The
-- row's slot is that of a day ago. No index changes, so the row's next version stays in its page. Returns after how many
-- seconds to note again: amid the next ten, so that a little delay leaves no gap.
WITH present AS MATERIALIZED (
    SELECT now, floor(extract(epoch FROM now) / 10)::bigint AS tens FROM clock_timestamp() AS now
), noted AS (
    INSERT INTO {history} AS known (shard, slot, noted_at, state, backlog, backlog_is_exact, oldest_age, rate, latency_p50, latency_p99)
    SELECT seen.shard, mod(tens, 8640), to_timestamp(10 * tens), seen.state, seen.backlog, seen.is_exact, seen.oldest_age, seen.rate, seen.p50, seen.p99
    FROM unnest(%(shards)s::integer[], %(members)s::text[], %(states)s::text[], %(backlogs)s::bigint[], %(are_exact)s::boolean[],
                %(oldest_ages)s::float8[], %(rates)s::float8[], %(latencies_p50)s::float8[], %(latencies_p99)s::float8[])
         AS seen (shard, member, state, backlog, is_exact, oldest_age, rate, p50, p99)
    JOIN {shard} AS fence ON fence.shard = seen.shard AND fence.member IS NOT DISTINCT FROM seen.member
    CROSS JOIN present
    ON CONFLICT (shard, slot) DO UPDATE
    SET noted_at = EXCLUDED.noted_at, state = EXCLUDED.state, backlog = EXCLUDED.backlog, backlog_is_exact = EXCLUDED.backlog_is_exact,
        oldest_age = EXCLUDED.oldest_age, rate = EXCLUDED.rate, latency_p50 = EXCLUDED.latency_p50, latency_p99 = EXCLUDED.latency_p99
    WHERE known.noted_at <> EXCLUDED.noted_at
)
SELECT 10 * tens + 15 - extract(epoch FROM now)::float8 FROM present

-- read --
-- A stretch of seconds up to now, in steps: of each step the gravest state, the most that waited, the oldest record, the
-- mean rate, and the worst latencies; of a shard, or (null) of all together. `gravity` has the states, the gravest
-- first. A step in which nobody noted anything has no row.
WITH noted AS (
    SELECT noted_at, min(array_position(%(gravity)s::text[], state)) AS gravity,
           CASE WHEN bool_and(backlog IS NOT NULL) THEN sum(backlog)::bigint END AS backlog, coalesce(bool_and(backlog_is_exact), true) AS is_exact,
           max(oldest_age) AS oldest_age, sum(rate) AS rate, max(latency_p50) AS latency_p50, max(latency_p99) AS latency_p99
    FROM {history}
    WHERE (%(shard)s::integer IS NULL OR shard = %(shard)s) AND noted_at BETWEEN clock_timestamp() - make_interval(secs => %(seconds)s) AND clock_timestamp()
    GROUP BY noted_at
)
SELECT to_timestamp(floor(extract(epoch FROM noted_at) / %(step)s) * %(step)s) AS noted_at,
       (%(gravity)s::text[])[min(gravity)] AS state, max(backlog) AS backlog, bool_and(is_exact) AS backlog_is_exact, max(oldest_age) AS oldest_age,
       avg(rate) AS rate, max(latency_p50) AS latency_p50, max(latency_p99) AS latency_p99
FROM noted
GROUP BY 1
ORDER BY 1
