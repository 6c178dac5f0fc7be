-- How an outbox is doing, and what operators ask of its leaders.

-- status --
-- One row per shard that has slots.
SELECT shard, member, view, took_over_at, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silent_for,
       published, in_flight, rate, paused, last_error, last_error_at
FROM {shard} CROSS JOIN {state}
WHERE slots IS DISTINCT FROM ARRAY[]::integer[]
ORDER BY shard

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

-- ask_pause --
-- Asks every leader to pause or to go on; it sees that with its next heartbeat.
-- It is paused since the first of such requests.
WITH asked AS (
    UPDATE {state} SET paused = %(paused)s, paused_at = CASE WHEN %(paused)s THEN coalesce(paused_at, clock_timestamp()) END
    RETURNING true
)
{noted}

-- ask_handover --
-- Asks a shard's leader to let another member lead; it sees that with its next heartbeat. Returns the leader.
WITH asked AS (
    UPDATE {shard} SET handover_asked_at = clock_timestamp() WHERE shard = %(shard)s
    RETURNING member, view
), noted AS (
    {noted}
)
SELECT member, view FROM asked
