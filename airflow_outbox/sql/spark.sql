-- The statements of Spark's writes. {outbox}, {commits}: the outbox's tables; {staging}: a table that one
-- task attempt makes in a schema for that and fills; `staged`: a temporary view of the rows that count, those of the
-- attempts that Spark accepted.
-- A transaction pooler may stand between: settings last for one transaction, and no lock outlives one.

-- place_of --
-- The outbox's schema, and its columns that have a default.
SELECT nspname, ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = pg_class.oid AND atthasdef AND NOT attisdropped)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = pg_catalog.to_regclass(%(outbox)s::text)::oid

-- begin_staging --
-- First in a task attempt's transaction. Its rows are worth nothing until the commit, so they need not reach the disk:
-- a crash takes rows away, which the commit notices by counting.
SELECT pg_catalog.set_config('search_path'::text, 'pg_catalog'::text, true), pg_catalog.set_config('synchronous_commit'::text, 'off'::text, true),
       pg_catalog.set_config('lock_timeout'::text, '10s'::text, true), extract(epoch FROM pg_catalog.now())::bigint

-- create_staging --
-- Unlogged, and made in the transaction that fills it: a failed attempt leaves nothing.
CREATE UNLOGGED TABLE {staging} ({typed_columns}) WITH (autovacuum_enabled = false)

-- create_text_staging --
-- The same for rows kept as lines of text, in numbered pieces; `records` is how many lines a piece has.
CREATE UNLOGGED TABLE {staging} (piece INTEGER NOT NULL, records INTEGER NOT NULL, lines BYTEA NOT NULL) WITH (autovacuum_enabled = false)

-- store_text_plainly --
-- Compressing it would take longer than writing it.
ALTER TABLE {staging} ALTER lines SET STORAGE EXTERNAL

-- describe_staging --
-- Whose it is, for those who sweep.
COMMENT ON TABLE {staging} IS {description}

-- copy --
-- Frozen: the table is this transaction's own, and later readers have nothing to find out about its rows.
COPY {staging} ({staged_columns}) FROM STDIN WITH (FREEZE)

-- copy_text --
-- The same for pieces of text.
COPY {staging} (piece, records, lines) FROM STDIN WITH (FORMAT binary, FREEZE)

-- begin_commit --
-- First in the commit's transaction. It is acknowledged when it is on disk, whatever the role says. It waits until a
-- rival with the same id ends. A sort fits into memory where it can. A scan begins where the table does, so that rows
-- keep their order. Returns where the job's role looks for names.
SELECT pg_catalog.current_setting('search_path'::text), pg_catalog.set_config('search_path'::text, 'pg_catalog'::text, true),
       pg_catalog.set_config('synchronous_commit'::text, 'on'::text, true), pg_catalog.set_config('lock_timeout'::text, '0'::text, true),
       pg_catalog.set_config('work_mem'::text, '256MB'::text, true), pg_catalog.set_config('synchronize_seqscans'::text, 'off'::text, true)

-- look_here --
-- In a transaction: functions and operators are looked for in pg_catalog alone.
SET LOCAL search_path = pg_catalog

-- look_there --
-- For the job's own statements: names are looked up as for the job's role.
SELECT set_config('search_path', %(search_path)s, true)

-- claim_commit --
-- One at a time for each id. The entry in {commits} would do, but it comes last: if a statement of the job ends the
-- transaction, no entry may say that the events were stashed.
SELECT pg_advisory_xact_lock(hashtextextended(%(app_id)s::text, %(version)s::bigint))

-- later_epoch --
-- The newest batch of a stream after this one, if any: a stream's batches come in order.
SELECT max(version) FROM {commits} WHERE app_id = %(app_id)s AND version > %(version)s AND owner IN (current_user, '')

-- staged_text --
-- The next pieces, some MiB at a time.
SELECT records, lines FROM {staging} WHERE piece >= %(first)s AND piece < %(behind)s ORDER BY piece

-- stash_text --
-- Lines of text become records unchanged. Ids are drawn in their order.
COPY {outbox} ({outbox_columns}) FROM STDIN

-- hold_inline --
-- For rows that came in the commit messages.
CREATE TEMPORARY TABLE {staging} ({typed_columns}) ON COMMIT DROP

-- copy_inline --
COPY {staging} ({staged_columns}) FROM STDIN

-- select_staged --
-- A part of the view below.
SELECT {columns} FROM {staging}

-- show_staged --
-- The rows that commitSql's statements read: those of accepted attempts, and never those of an attempt that failed
-- after its COPY.
CREATE TEMPORARY VIEW staged AS {parts}

-- count_staged --
SELECT count(*) FROM pg_temp.staged

-- transaction --
-- The present transaction. Another one shows that a statement of the job has ended the one that it was run in.
SELECT pg_catalog.pg_current_xact_id()::text

-- stash_staged --
-- Ids are drawn in this order, so records published in the order of ids are published in this order.
INSERT INTO {outbox} (create_time, {outbox_columns})
SELECT now(), {record_columns}
FROM {source}

-- in_order --
-- Behind the statement above, where the job names an order.
ORDER BY {order}

-- hide_staged --
DROP VIEW IF EXISTS pg_temp.staged

-- staging_tables --
-- The staging tables of this role that nobody needs any more: those of the asking run, those whose id is in {commits}
-- (of a stream: that batch or a later one), and those older than anybody waits.
SELECT relname
FROM (
    SELECT relname, CASE WHEN starts_with(about, '{{"app_id"') THEN about::jsonb END AS tag
    FROM (
        SELECT relname, obj_description(oid, 'pg_class') AS about
        FROM pg_class
        WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s) AND relkind = 'r' AND relpersistence = 'u'
              AND starts_with(relname::text, %(prefix)s) AND pg_get_userbyid(relowner) = current_user
    ) AS described
) AS staging
WHERE tag ->> 'run' = %(run)s
      OR (tag ->> 'created')::bigint < extract(epoch FROM now()) - %(ttl)s
      OR EXISTS (
          SELECT FROM {commits}
          WHERE app_id = tag ->> 'app_id' AND owner IN (current_user, '')
                AND (version = (tag ->> 'version')::bigint OR (tag ->> 'is_stream')::boolean AND version > (tag ->> 'version')::bigint)
      )
ORDER BY relname

-- wait_briefly --
-- In the transaction that drops a staging table: a straggling task may hold it for long.
SET LOCAL lock_timeout = '1s'

-- drop_staging --
DROP TABLE IF EXISTS {staging}
