-- What a page of many outboxes, and the page of one, are made of. No statement looks at more than a bounded number of the
-- outbox's rows.

-- begin --
-- For a connection of the page: no statement takes long, and none scans a table that has an index. What is prepared is
-- planned once.
SELECT set_config('statement_timeout', %(milliseconds)s::text, false), set_config('lock_timeout', %(milliseconds)s::text, false),
       set_config('enable_seqscan', 'off', false), set_config('enable_sort', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false)

-- shape --
-- The first of some schemas that has an outbox of this name, and whether its records' transactions can be relied on, as
-- `transaction_id_trigger.sql` says; and whether its keys are bytes.
SELECT place.nspname,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = relation.oid AND attname = 'transaction_id' AND NOT attisdropped)
       AND EXISTS (
           SELECT FROM pg_trigger
           WHERE tgrelid = relation.oid AND tgenabled = 'A' AND tgname = 'loaded'
             AND tgfoid = to_regproc(format('%%I.%%I', place.nspname, %(table)s::text || '_loaded'))
       ) AS is_guarded,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = relation.oid AND attname = 'kafka_key' AND atttypid = 'bytea'::regtype) AS bytes_keys
FROM unnest(%(schemas)s::text[]) WITH ORDINALITY AS wanted (name, number)
JOIN pg_namespace AS place ON place.nspname = wanted.name
JOIN pg_class AS relation ON relation.relnamespace = place.oid AND relation.relname = %(table)s::text
ORDER BY wanted.number
LIMIT 1

-- overview --
-- All that the verdict is made of; how many records are parked, counted up to a bound and one more; and how many records a
-- second were published in the last hour, one number a minute (null: nobody led). It is made of the statements of
-- `verdict.sql`.
SELECT facts.*, waiting.shards AS waiting_shards, waiting.records, waiting.ages AS waiting_ages,
       refused.shards AS parked_shards, refused.causes, refused.counts, refused.sinces, refused.reasons,
       told.members, told.kinds, told.errors, told.sinces AS told_sinces, told.times, told.shards AS told_shards, recent.rates,
       (SELECT count(*) FROM (SELECT number FROM {parked} WHERE discarded_at IS NULL ORDER BY kafka_topic, lane_key, number LIMIT %(most_parked)s + 1) AS counted) AS all_parked
FROM ({facts}) AS facts
CROSS JOIN (
    SELECT array_agg(shard) AS shards, array_agg(records) AS records, array_agg(oldest_age) AS ages FROM ({backlog}) AS each
) AS waiting
CROSS JOIN (
    SELECT array_agg(shard) AS shards, array_agg(cause) AS causes, array_agg(records) AS counts, array_agg(since) AS sinces, array_agg(reason) AS reasons
    FROM ({parked_facts}) AS each
) AS refused
CROSS JOIN (
    SELECT array_agg(member) AS members, array_agg(kind) AS kinds, array_agg(error) AS errors, array_agg(since) AS sinces, array_agg(told_at) AS times,
           array_agg(shard) AS shards
    FROM ({troubles}) AS each
) AS told
CROSS JOIN (
    -- Each number by the primary key: a join might read the whole day.
    SELECT array_agg((
        SELECT sum(noted.rate) FROM {history} AS noted
        WHERE noted.shard = ANY(known.shards) AND noted.slot = mod(newest - 6 * ago, 8640) AND noted.noted_at = to_timestamp(10 * (newest - 6 * ago))
    ) ORDER BY ago DESC) AS rates
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) / 10)::bigint - 1 AS newest) AS present
    CROSS JOIN (SELECT array_agg(shard) AS shards FROM {shard}) AS known
    CROSS JOIN generate_series(59, 0, -1) AS ago
) AS recent

-- nothing_counted --
-- In place of `backlog` where counting takes too long.
SELECT NULL::integer AS shard, NULL::bigint AS records, NULL::float8 AS oldest_age

-- shards --
-- One row a shard: how it is harvested, and how far. The watermark is shown only where it can be believed.
SELECT fence.shard, fence.delivery, told.watermark::text, told.batch, told.topics, fence.published_at
FROM {shard} AS fence
JOIN {published} AS told USING (shard)
ORDER BY fence.shard

-- table --
-- What the outbox is, how many shards somebody asks for, and about how many dead rows it has.
SELECT state.outbox_id, state.incarnation, state.schema_version, state.shards_wanted, pg_stat_get_dead_tuples(to_regclass(%(outbox)s)) AS dead_rows
FROM {state} AS state
