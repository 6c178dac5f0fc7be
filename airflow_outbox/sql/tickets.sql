-- The statements about tickets: whether transactions are published. {published}: the view; {outbox}: the table. They
-- run on callers' connections, so every function is named with its schema, and every operator finds exactly its types
-- in pg_catalog.

-- watermarks --
-- How far everything is published, one row per shard; why nobody can tell; which run of which server has answered; and
-- the secret that proves announcements.
SELECT outbox_id, incarnation, delivery, watermark::text, doubt, extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text, secret, shard, layout, is_one_of_many
FROM {published} ORDER BY shard

-- account --
-- The same, with the last batch and the published records of each topic by then.
SELECT outbox_id, incarnation, delivery, watermark::text, doubt, extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text, secret, shard, layout, is_one_of_many, batch, topics
FROM {published} ORDER BY shard

-- doubt --
-- Why nobody can tell what is published; no row where it can be told.
SELECT doubt FROM {published} WHERE doubt IS NOT NULL ORDER BY shard LIMIT 1

-- outcomes --
-- The outcome of transactions, and the name under which one was prepared and not ended. An id at or above the
-- snapshot's xmax has not ended; Postgres would not say anything of one that has not begun. It has forgotten very old
-- ones (null).
SELECT asked.id::text::bigint,
       CASE WHEN asked.id >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) THEN 'in progress' ELSE pg_catalog.pg_xact_status(asked.id) END,
       prepared.gid, extract(epoch FROM pg_catalog.clock_timestamp() - prepared.prepared)::float8
FROM pg_catalog.unnest(%(transaction_ids)s::text[]::xid8[]) AS asked (id)
LEFT JOIN pg_catalog.pg_prepared_xacts AS prepared ON prepared.transaction = asked.id::xid AND prepared.database = pg_catalog.current_database()

-- has_begun --
-- Whether transactions that have not ended have begun, as far as this connection can tell: each of those has a lock. A
-- standby does not show its primary's; and where a transaction has one snapshot, such a transaction may have ended.
SELECT pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_isolation'::text) <> 'read committed'::text OR EXISTS (
    SELECT FROM pg_catalog.unnest(%(transaction_ids)s::text[]::xid8[]) AS asked (id)
    JOIN pg_catalog.pg_locks AS held ON held.transactionid = asked.id::xid
)

-- left --
-- How many records of each transaction are in the outbox, in order, counting at most this many in all: the last
-- transaction may have more, and those behind it do not show. Transactions without any give no row.
SELECT transaction_id::text::bigint, pg_catalog.count(*)
FROM (
    SELECT transaction_id FROM {outbox}
    WHERE transaction_id = ANY(%(transaction_ids)s::text[]::xid8[])
    ORDER BY transaction_id
    LIMIT %(most)s + 1
) AS counted
GROUP BY transaction_id
ORDER BY transaction_id

-- may_count --
-- Whether the role may look at the transaction ids in the outbox.
SELECT pg_catalog.has_column_privilege(%(outbox)s::text, 'transaction_id'::text, 'SELECT'::text)

-- settled --
-- The last word on transactions, asked after a watermark is known to see them:
-- - whether the watermark still counts: the same incarnation, on the same run of the same server, and no doubt about
--   either
-- - what became of each transaction
-- - how many of its records are parked, how many were discarded, and some of the reasons
-- - on which clusters it is, if all of it is published: those that count, and did so before it
WITH told AS MATERIALIZED (SELECT clusters FROM {published} ORDER BY shard LIMIT 1)
SELECT asked.id::text::bigint,
       (SELECT coalesce(pg_catalog.bool_and(doubt IS NULL AND incarnation = %(incarnation)s), false) FROM {published})
           AND extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text = %(server)s,
       CASE WHEN asked.id >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) THEN 'in progress' ELSE pg_catalog.pg_xact_status(asked.id) END,
       coalesce(found.waiting, 0), coalesce(found.discarded, 0), coalesce(found.reasons, ARRAY[]::text[]),
       ARRAY(
           SELECT name
           FROM told CROSS JOIN pg_catalog.jsonb_each_text(clusters) AS cluster (name, lacks)
           WHERE lacks IS NULL OR NOT pg_catalog.pg_visible_in_snapshot(asked.id, lacks::pg_catalog.pg_snapshot)
           ORDER BY name
       )
FROM pg_catalog.unnest(%(transaction_ids)s::text[]::xid8[]) AS asked (id)
LEFT JOIN (
    SELECT transaction_id, pg_catalog.count(*) FILTER (WHERE discarded_at IS NULL) AS waiting, pg_catalog.count(*) FILTER (WHERE discarded_at IS NOT NULL) AS discarded,
           (pg_catalog.array_agg(DISTINCT reason) FILTER (WHERE reason IS NOT NULL))[1:3] AS reasons
    FROM {parked}
    WHERE transaction_id = ANY(%(transaction_ids)s::text[]::xid8[]) AND incarnation = %(incarnation)s
    GROUP BY transaction_id
) AS found ON found.transaction_id = asked.id
