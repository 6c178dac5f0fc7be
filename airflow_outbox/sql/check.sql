-- The questions of `airflow-outbox check`.

-- harvest_privileges --
-- The connected role's rights on the tables, as the harvester needs them.
SELECT has_table_privilege(%(outbox)s, 'SELECT') AND has_table_privilege(%(outbox)s, 'DELETE')
       AND has_column_privilege(%(outbox)s, 'leader_id', 'UPDATE') AS outbox,
       has_table_privilege(%(state)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(state)s, name, 'UPDATE'))
           FROM unnest(ARRAY['halted', 'system_identifier', 'timeline', 'table_oid', 'database_oid']) AS name
       ) AS state,
       has_table_privilege(%(shard)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(shard)s, name, 'UPDATE'))
           FROM unnest(ARRAY['view', 'begun_view', 'backends', 'member', 'took_over_at', 'heartbeat_at', 'beats', 'delivery', 'last_error', 'last_error_at',
                             'published', 'published_at', 'in_flight', 'rate', 'highest_id', 'watermark', 'covered_batch', 'topics', 'uncovered']) AS name
       ) AS shard,
       has_table_privilege(%(ledger)s, 'SELECT') AND (
           SELECT bool_and(has_column_privilege(%(ledger)s, name, 'UPDATE'))
           FROM unnest(ARRAY['ledger_topic_id', 'witnessed_batch', 'ledger_offset', 'transactional_ids']) AS name
       ) AS ledger

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
