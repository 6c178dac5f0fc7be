-- The questions of `airflow-outbox check`.

-- harvest_privileges --
-- The connected role's rights on the tables, as the harvester needs them.
SELECT has_table_privilege(%(outbox)s, 'SELECT') AND has_table_privilege(%(outbox)s, 'DELETE')
       AND has_column_privilege(%(outbox)s, 'leader_id', 'UPDATE') AS outbox,
       has_table_privilege(%(state)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(state)s, name, 'UPDATE'))
           FROM unnest(ARRAY['halted', 'system_identifier', 'timeline', 'table_oid', 'database_oid', 'layout', 'shards', 'shards_wanted', 'shards_wanted_at', 'membership', 'promotions', 'attach_wanted', 'attach_how']) AS name
       ) AS state,
       has_table_privilege(%(shard)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(shard)s, name, 'UPDATE'))
           FROM unnest(ARRAY['view', 'slots_view', 'slots', 'layout', 'begun_view', 'backends', 'member', 'took_over_at', 'heartbeat_at', 'beats', 'delivery', 'last_error', 'last_error_at',
                             'published', 'published_at', 'in_flight', 'rate', 'highest_id', 'watermark', 'covered_batch', 'topics', 'uncovered', 'primary_cluster', 'begun_primary']) AS name
       ) AS shard,
       has_table_privilege(%(ledger)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(ledger)s, name, 'UPDATE'))
           FROM unnest(ARRAY['ledger_topic_id', 'witnessed_batch', 'ledger_offset', 'transactional_ids']) AS name
       ) AS ledger,
       (SELECT bool_and(has_table_privilege(%(parked)s, wanted)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted) AS parked,
       (SELECT bool_and(has_table_privilege(%(undeleted)s, wanted)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted) AS undeleted,
       (SELECT bool_and(has_table_privilege(%(trouble)s, wanted)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted) AS trouble,
       (SELECT bool_and(has_table_privilege(%(member)s, wanted)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted) AS member,
       (SELECT bool_and(has_table_privilege(%(positions)s, wanted)) FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted) AS positions,
       has_table_privilege(%(history)s, 'SELECT') AND has_table_privilege(%(history)s, 'INSERT') AND (
           SELECT bool_and(has_column_privilege(%(history)s, name, 'UPDATE'))
           FROM unnest(ARRAY['noted_at', 'state', 'backlog', 'backlog_is_exact', 'oldest_age', 'rate', 'latency_p50', 'latency_p99']) AS name
       ) AS history

-- sequence_cache --
-- How many ids a session draws at once.
SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass(pg_get_serial_sequence(%(outbox)s, 'id'))

-- encoding --
SELECT current_setting('server_encoding')

-- synchronous_standbys --
-- The standbys that commits wait for, as the server is told to find them; empty when there are none.
SELECT current_setting('synchronous_standby_names')

-- lock_holders --
-- The transactions of other sessions, and the prepared ones, that hold locks for which the harvester waits: of rows, in the
-- tables whose rows it changes (`by_row`), and of whole tables. Roles see no more of other roles' sessions than that.
SELECT DISTINCT virtualtransaction, relname::text,
       coalesce('the prepared transaction ' || quote_literal(gid),
                'the session with process id ' || lock.pid || ' (' || concat_ws(', ', usename, nullif(application_name, ''), state) || ')')
FROM unnest(%(tables)s::text[], %(by_row)s::boolean[]) AS wanted (name, by_row)
JOIN pg_class ON pg_class.oid = to_regclass(wanted.name)
JOIN pg_locks AS lock ON lock.relation = pg_class.oid
LEFT JOIN pg_stat_activity AS session ON session.pid = lock.pid
LEFT JOIN pg_prepared_xacts AS prepared ON lock.pid IS NULL AND virtualtransaction = '-1/' || prepared.transaction
WHERE granted AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND lock.pid IS DISTINCT FROM pg_backend_pid()
      AND (mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
           OR by_row AND mode IN ('RowShareLock', 'RowExclusiveLock'))
ORDER BY relname, virtualtransaction

-- pending_topics --
-- The topics of waiting records, as far as a look at the first ones tells.
SELECT DISTINCT kafka_topic FROM (SELECT kafka_topic FROM {outbox} AS record WHERE {unless_undeleted} ORDER BY id LIMIT %(limit)s) AS head

-- paused --
-- Since when the outbox is paused (null: an earlier release did not note it); no row while it is not.
SELECT paused_at FROM {state} WHERE paused

-- foreign_keys --
-- The foreign keys that refer to one of these tables: their names, the tables that they are of, those that they refer to, and
-- what a delete does, as one letter.
SELECT conname::text, conrelid::regclass::text, wanted.name, confdeltype::text
FROM unnest(%(tables)s::text[]) AS wanted (name)
JOIN pg_constraint ON contype = 'f' AND confrelid = to_regclass(wanted.name)
ORDER BY wanted.name, conrelid::regclass::text, conname

-- delete_triggers --
-- The outbox's triggers on a delete, and whether each acts before a row is deleted. As bits: for each row, before, on delete.
SELECT tgname::text, tgtype & 1 <> 0 AND tgtype & 2 <> 0
FROM pg_trigger
WHERE tgrelid = to_regclass(%(outbox)s) AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 8 <> 0
ORDER BY tgname
