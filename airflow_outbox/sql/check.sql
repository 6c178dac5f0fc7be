-- The questions of `airflow-outbox check`.

-- harvest_privileges --
-- The connected role's rights on the tables, as the harvester needs them.
SELECT has_table_privilege(%(outbox)s, 'SELECT') AND has_table_privilege(%(outbox)s, 'DELETE')
       AND has_column_privilege(%(outbox)s, 'leader_id', 'UPDATE') AS outbox,
       has_table_privilege(%(leader)s, 'SELECT') AND has_table_privilege(%(leader)s, 'UPDATE') AS leader

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
