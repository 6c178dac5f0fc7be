-- The statements of a Spark job. {outbox}, {leader}, {commits}: the outbox's tables; {staging}: the table of one run, made beside the
-- outbox, that the run's tasks COPY into; `staged`: a temporary view of the rows that count, those of the attempts that Spark accepted.

-- schema_of --
-- The schema that the outbox stands in.
SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass(%(outbox)s)

-- claim_staging --
-- Says that a staging table is in use, for as long as this session lives: a driver that dies lets go of it by dying.
SELECT pg_advisory_lock(hashtextextended(%(staging)s, 0))

-- claim_left_over_staging --
-- The same for a table that another run has left: false while that run lives.
SELECT pg_try_advisory_lock(hashtextextended(%(staging)s, 0))

-- release_staging --
SELECT pg_advisory_unlock(hashtextextended(%(staging)s, 0))

-- create_staging --
-- Unlogged: a crash of the server empties it, which the commit notices by counting. `staged_by` is Spark's id of the task attempt.
CREATE UNLOGGED TABLE {staging} ({typed_columns}, staged_by BIGINT NOT NULL) WITH (autovacuum_enabled = false)

-- copy --
-- What one task attempt sends, in a transaction of its own.
COPY {staging} ({staged_columns}, staged_by) FROM STDIN

-- staging_tables --
-- The staging tables of this role in the outbox's schema whose names begin alike; another outbox's may be among them.
SELECT relname
FROM pg_class
WHERE relnamespace = %(schema)s::regnamespace AND relkind = 'r' AND relpersistence = 'u'
      AND starts_with(relname::text, %(prefix)s) AND pg_get_userbyid(relowner) = current_user
ORDER BY relname

-- wait_briefly --
-- In the transaction that drops a staging table: a straggling task may hold it for long.
SET LOCAL lock_timeout = '1s'

-- drop_staging --
DROP TABLE IF EXISTS {staging}

-- wait_for_rivals --
-- In the commit's transaction: a rival with the same id, or a writer of the same business rows, is waited for until it ends.
SET LOCAL lock_timeout = 0

-- claim_commit --
-- One at a time for each id. The entry in {commits} would do, but it comes last: should a statement of the job end the transaction,
-- no entry may say that the events were stashed.
SELECT pg_advisory_xact_lock(hashtextextended(%(app_id)s::text, %(version)s::bigint))

-- show_staged --
-- What the job's statements read: the rows of the accepted attempts, and never those of an attempt that failed after its COPY.
CREATE TEMPORARY VIEW staged AS SELECT {staged_columns} FROM {staging} WHERE staged_by = ANY({attempts}::bigint[])

-- count_staged --
SELECT count(*) FROM pg_temp.staged

-- unfit_record --
-- The first staged record that Kafka or the outbox could not take, and what is wrong with it; no row when all are fit.
SELECT unfit_place, unfit_problem
FROM (
    SELECT concat_ws(', ', {order}) AS unfit_place, {order},
           CASE
               WHEN topic IS NULL OR topic !~ '^[A-Za-z0-9._-]{{1,249}}$' OR topic IN ('.', '..')
                   THEN 'topic: ' || coalesce(quote_literal(topic), 'null') || ' is not a legal name: 1 to 249 letters, digits, ".", "_" and "-"'
               WHEN key IS NULL THEN 'key: null; the outbox needs one'
               WHEN length(key) > %(key_limit)s THEN 'key: ' || length(key) || ' characters, the column takes ' || %(key_limit)s::int
               WHEN length(value) > %(value_limit)s THEN 'value: ' || length(value) || ' characters, the column takes ' || %(value_limit)s::int
               WHEN array_position(header_keys, NULL) IS NOT NULL OR '' = ANY (header_keys) THEN 'headers: a header has no name'
               WHEN array_position(header_values, NULL) IS NOT NULL THEN 'headers: a header has no value'
           END AS unfit_problem
    FROM pg_temp.staged
) AS examined
WHERE unfit_problem IS NOT NULL
ORDER BY {order}
LIMIT 1

-- stash_staged --
-- Ids are drawn in the job's order: what is published in the order of ids is so published in that order.
INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT now(), topic, key, value, header_keys, header_values
FROM pg_temp.staged
ORDER BY {order}

-- stash_staged_with_partition --
-- The same for staged records that name their partition.
INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition)
SELECT now(), topic, key, value, header_keys, header_values, partition
FROM pg_temp.staged
ORDER BY {order}

-- hide_staged --
DROP VIEW pg_temp.staged
