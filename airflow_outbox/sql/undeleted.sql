-- Records that are published or parked, and that Postgres would not delete: something refers to them, or a trigger objects.
-- They stay in the outbox, and are gone for harvesters. {undeleted}: the table that names them.

-- unless_undeleted --
-- Part of the statements that look for records that wait. The time is compared, too: a table that was emptied may give the
-- same ids again.
NOT EXISTS (SELECT FROM {undeleted} AS undeleted WHERE undeleted.id = record.id AND undeleted.create_time = record.create_time)

-- are_any --
SELECT EXISTS (SELECT FROM {undeleted})

-- note --
-- Notes published records that Postgres would not delete, and why, if the fence names this view and has
-- published them. Returns whether the fence does.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), noted AS (
    INSERT INTO {undeleted} (id, create_time, shard, published, reason)
    SELECT id, create_time, %(shard)s, true, why.reason
    FROM {outbox} JOIN unnest(%(ids)s::bigint[], %(reasons)s::text[]) AS why (id, reason) USING (id)
    WHERE {mine} AND EXISTS (SELECT FROM fence)
    ON CONFLICT (id) DO UPDATE
    SET create_time = excluded.create_time, shard = excluded.shard, published = true, reason = excluded.reason, tried_at = clock_timestamp()
)
SELECT EXISTS (SELECT FROM fence)

-- due --
-- The records to try again, those first that were tried longest ago, and whether each is published. The first shard takes
-- those of shards that are no more.
SELECT id, published
FROM {undeleted} AS undeleted
WHERE shard = %(shard)s OR %(shard)s = 0 AND NOT EXISTS (
    SELECT FROM {shard} AS other WHERE other.shard = undeleted.shard AND slots IS DISTINCT FROM ARRAY[]::integer[]
)
ORDER BY tried_at
LIMIT %(most)s

-- delete --
-- Deletes them, or archives them, if the fence names this view. Returns whether it does.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox} AS record USING {undeleted} AS undeleted
    WHERE record.id = ANY(%(ids)s) AND undeleted.id = record.id AND undeleted.create_time = record.create_time AND EXISTS (SELECT FROM fence)
    RETURNING record.*
) {archived}
SELECT EXISTS (SELECT FROM fence)

-- forget --
-- Forgets those of these records that are gone, if the fence names this view, and notes why the others are not (null: as
-- before). Returns whether it does.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), gone AS (
    DELETE FROM {undeleted} AS undeleted
    WHERE id = ANY(%(ids)s::bigint[]) AND EXISTS (SELECT FROM fence)
      AND NOT EXISTS (SELECT FROM {outbox} AS record WHERE record.id = undeleted.id AND record.create_time = undeleted.create_time)
    RETURNING id
), still AS (
    UPDATE {undeleted} AS undeleted SET reason = coalesce(why.reason, undeleted.reason), tried_at = clock_timestamp()
    FROM unnest(%(ids)s::bigint[], %(reasons)s::text[]) AS why (id, reason)
    WHERE undeleted.id = why.id AND undeleted.id NOT IN (SELECT id FROM gone) AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- triggers --
-- The outbox's triggers before a delete of each row, which may keep it. As bits: for each row, before, on delete.
SELECT tgname::text FROM pg_trigger
WHERE tgrelid = to_regclass(%(outbox)s) AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 1 <> 0 AND tgtype & 2 <> 0 AND tgtype & 8 <> 0
ORDER BY tgname

-- list --
-- The published ones, or some of them (nulls, no ids: all), without their contents, in order, with the beginnings of their
-- keys (null: whole ones). The columns are those of `parked.list`.
SELECT id, kafka_topic AS topic, substr(kafka_key, 1, coalesce(%(most_key)s::integer, 2147483647)) AS key, {shard_now} AS shard, {transaction_id} AS transaction_id, 'undeleted' AS cause, reason, NULL::integer AS attempts,
       create_time, noted_at AS parked_at, tried_at AS last_attempt_at, NULL::timestamptz AS retry_at, NULL::text AS requested, NULL::text AS requested_by,
       NULL::timestamptz AS requested_at, NULL::text AS request_reason, NULL::timestamptz AS discarded_at, NULL::timestamptz AS purged_at
FROM {outbox} JOIN {undeleted} AS undeleted USING (id, create_time)
WHERE published AND (%(topic)s::text IS NULL OR kafka_topic = %(topic)s::text) AND (%(key)s::{key_type} IS NULL OR kafka_key = %(key)s::{key_type})
      AND (cardinality(%(ids)s::bigint[]) = 0 OR id = ANY(%(ids)s::bigint[]))
ORDER BY id
LIMIT %(limit)s
