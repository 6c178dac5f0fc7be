-- What is asked of tickets: whether transactions are published. {published}: the view; {outbox}: the table.

-- watermarks --
-- How far everything is out, one row a shard.
SELECT outbox_id, incarnation, delivery, watermark::text FROM {published} ORDER BY shard

-- account --
-- The same, with the last batch and the records published of each topic by then.
SELECT outbox_id, incarnation, delivery, watermark::text, batch, topics FROM {published} ORDER BY shard

-- outcomes --
-- What became of transactions, and under which name one was prepared and not ended. An id at or above the snapshot's xmax has not
-- ended, and of one that has not begun Postgres would not say anything. Of very old ones it has forgotten it (null).
SELECT asked.id::text::bigint,
       CASE WHEN asked.id >= pg_snapshot_xmax(pg_current_snapshot()) THEN 'in progress' ELSE pg_xact_status(asked.id) END,
       prepared.gid, extract(epoch FROM clock_timestamp() - prepared.prepared)::float8
FROM unnest(%(transaction_ids)s::text[]::xid8[]) AS asked (id)
LEFT JOIN pg_prepared_xacts AS prepared ON prepared.transaction = asked.id::xid AND prepared.database = current_database()

-- left --
-- How many records of each transaction are in the outbox, in order, and of at most so many records in all: the last transaction may have
-- more, and those behind it do not show. None where there are none.
SELECT transaction_id::text::bigint, count(*)
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
SELECT has_column_privilege(%(outbox)s, 'transaction_id', 'SELECT')

-- parked --
-- How many records of each transaction wait among the parked ones, how many were discarded, and some of the reasons; no row where none is.
SELECT transaction_id::text::bigint,
       count(*) FILTER (WHERE discarded_at IS NULL), count(*) FILTER (WHERE discarded_at IS NOT NULL),
       coalesce((array_agg(DISTINCT reason) FILTER (WHERE reason IS NOT NULL))[1:3], ARRAY[]::text[])
FROM {parked}
WHERE transaction_id = ANY(%(transaction_ids)s::text[]::xid8[]) AND incarnation = %(incarnation)s
GROUP BY transaction_id
