-- Several clusters: a batch that is committed on one of them is completed on the others; what clusters are owed is kept,
-- and given to them; which clusters count. {outbox}, {parked}, {shard}, {ledger}, {cluster}, {owed}, {owed_rows}, {state}: the tables.
-- All take their locks in the order of fence.sql: shards by number, then ledgers, then clusters, then the outbox.

-- note_producers --
-- Adds producers' transactional ids to those of a cluster, durably, before they are used. The others may still be at
-- work.
WITH fence AS MATERIALIZED (
    SELECT shard FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
)
UPDATE {ledger} AS ledger
SET transactional_ids = transactional_ids || ARRAY(
    SELECT unnest(%(transactional_ids)s::text[]) EXCEPT SELECT unnest(ledger.transactional_ids)
)
FROM fence
WHERE ledger.shard = fence.shard AND cluster = %(cluster)s
RETURNING true

-- committed --
-- The records with these ids, in their order, as far as the snapshot sees their transactions; as `windows.read_on` reads
-- them.
SELECT id, kafka_topic, {key}, kafka_value, kafka_header_keys, kafka_header_values, {partition}, size, NULL::bigint
FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS asked (id, place)
JOIN (SELECT record.*, size FROM {outbox} AS record {measured}) AS found USING (id)
WHERE pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot)
ORDER BY place

-- committed_parked --
-- The parked records with these numbers, in their order.
SELECT number, kafka_topic, {key}, kafka_value, kafka_header_keys, kafka_header_values, {partition}, size, NULL::bigint
FROM unnest(%(numbers)s::bigint[]) WITH ORDINALITY AS asked (number, place)
JOIN (SELECT record.*, size FROM {parked} AS record {measured}) AS found USING (number)
ORDER BY place

-- keep_owed --
-- Keeps a batch that a cluster is owed, if the fence names this view: its entry, and its records in published order. They
-- are still in the outbox, or in the parked table; what is kept already stays as it is.
WITH fence AS MATERIALIZED (
    SELECT shard FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), published AS MATERIALIZED (
    SELECT place, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, {partition} AS kafka_partition
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS asked (id, place) JOIN {outbox} USING (id)
    WHERE pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot) AND EXISTS (SELECT FROM fence)
    UNION ALL
    SELECT cardinality(%(ids)s::bigint[]) + place, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, {partition}
    FROM unnest(%(numbers)s::bigint[]) WITH ORDINALITY AS asked (number, place) JOIN {parked} USING (number)
    WHERE EXISTS (SELECT FROM fence)
), kept AS (
    INSERT INTO {owed} (shard, batch, entry, size)
    SELECT shard, %(batch)s, %(entry)s::text::json, octet_length(%(entry)s::text) + coalesce((SELECT sum(pg_column_size(published)) FROM published), 0)
    FROM fence
    ON CONFLICT DO NOTHING
    RETURNING shard, batch
), rows AS (
    INSERT INTO {owed_rows} (shard, batch, place, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition)
    SELECT shard, batch, place, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition
    FROM kept CROSS JOIN published
)
SELECT EXISTS (SELECT FROM fence)

-- owed_entries --
-- The batches kept between two, at most this many, the first excluded and the last included, in order: number and entry.
SELECT batch, entry FROM {owed} WHERE shard = %(shard)s AND batch > %(after)s AND batch <= %(upto)s ORDER BY batch LIMIT %(most)s

-- owed_rows --
-- The records kept of a batch, in published order; as `windows.read_on` reads them.
SELECT place::bigint, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition,
       pg_column_size(kept)::bigint, NULL::bigint
FROM {owed_rows} AS kept
WHERE shard = %(shard)s AND batch = %(batch)s
ORDER BY place

-- last_owed --
-- The last batch that is kept (null: none).
SELECT max(batch) FROM {owed} WHERE shard = %(shard)s

-- left_to_catch_up --
-- How many batches of all shards are kept that a cluster does not have, as far as Postgres knows.
SELECT count(*) FROM {owed} JOIN {ledger} USING (shard) WHERE cluster = %(cluster)s AND batch > witnessed_batch

-- note_caught_up --
-- How far an owed cluster has got what it missed.
WITH fence AS MATERIALIZED (
    SELECT shard FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
)
UPDATE {ledger} AS ledger
SET ledger_topic_id = %(topic_id)s, witnessed_batch = %(batch)s, ledger_offset = %(offset)s
FROM fence
WHERE ledger.shard = fence.shard AND cluster = %(cluster)s
RETURNING true

-- skip --
-- Which records an owed cluster does not get, since it has them alone.
WITH fence AS MATERIALIZED (
    SELECT shard FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
)
UPDATE {ledger} AS ledger SET skipped = %(skipped)s::jsonb
FROM fence
WHERE ledger.shard = fence.shard AND cluster = %(cluster)s
RETURNING true

-- unpublished --
-- Whether one of these records waits in the outbox, or one of these numbers among the parked records.
SELECT EXISTS (SELECT FROM {outbox} AS record WHERE id = ANY(%(ids)s::bigint[]) AND {unless_undeleted})
       OR EXISTS (SELECT FROM {parked} WHERE number = ANY(%(numbers)s::bigint[]) AND discarded_at IS NULL)

-- close_attach --
-- From now on no shard but the first is led, until this cluster counts, or is refused. Returns also whether it is still
-- asked for: the leader of another shard may have refused it. Then nothing is closed.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), closed AS (
    UPDATE {state} SET attach_closing = true WHERE EXISTS (SELECT FROM fence) AND attach_wanted = %(cluster)s
    RETURNING true
)
SELECT EXISTS (SELECT FROM fence), EXISTS (SELECT FROM closed)

-- drop_owed --
-- Forgets the oldest batches, if the fence names this view: those kept for longer than may be (`seconds`), and those beyond
-- the newest `bytes`. A cluster that lacks one of them can't be attached any more but with `reset`; its row says so. Returns
-- how many batches were forgotten.
WITH fence AS MATERIALIZED (
    SELECT shard FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), gone AS (
    DELETE FROM {owed}
    WHERE shard = (SELECT shard FROM fence) AND batch <= (
        SELECT max(batch)
        FROM (SELECT batch, kept_at, sum(size) OVER (ORDER BY batch DESC) AS bytes FROM {owed} WHERE shard = %(shard)s) AS kept
        WHERE bytes > %(bytes)s OR kept_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    )
    RETURNING shard, batch
), rows AS (
    DELETE FROM {owed_rows} AS kept USING gone WHERE kept.shard = gone.shard AND kept.batch = gone.batch
), told AS (
    UPDATE {cluster} SET reason = 'it lacks records that are not kept any more: more was published than limits.owed_retention and limits.owed_bytes allow. Delete its topics, the ledger included, make them again, run `airflow-outbox init`, and then `airflow-outbox clusters reset NAME`'
    WHERE part = 'owed' AND EXISTS (
        SELECT FROM {ledger} AS ledger JOIN gone USING (shard) WHERE cluster = name AND witnessed_batch < batch
    )
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM gone)

-- membership --
-- The clusters, the primary first, with how many memberships and promotions there were, and what somebody asks for.
SELECT name, part, since, reason, membership, promotions, attach_wanted
FROM {cluster} CROSS JOIN {state}
ORDER BY part <> 'primary', part, name

-- ledgers --
-- How far each cluster's ledger of each shard that has slots is known to be purged.
SELECT cluster, shard, ledger_topic_id, witnessed_batch, ledger_offset
FROM {ledger} JOIN {shard} USING (shard)
WHERE slots IS DISTINCT FROM ARRAY[]::integer[]

-- shards --
SELECT shard FROM {shard} ORDER BY shard

-- lock --
-- Every shard, while the membership changes; before the outbox.
SELECT shard, view FROM {shard} ORDER BY shard FOR UPDATE

-- write_part --
-- What a cluster is from now on. A reason belongs to its part. `lacks`: it counts without what was published so far.
UPDATE {cluster}
SET part = %(part)s, lacks = CASE WHEN %(lacks)s THEN pg_current_snapshot() ELSE lacks END,
    since = CASE WHEN part = %(part)s THEN since ELSE clock_timestamp() END,
    reason = CASE WHEN part = %(part)s THEN coalesce(%(reason)s, reason) ELSE %(reason)s END
WHERE name = %(name)s

-- write_shard --
-- Nobody leads in the new membership, and nobody can go on who did. A promotion is a layout of its own: all members join
-- another group.
UPDATE {shard}
SET view = %(view)s, slots_view = %(view)s, primary_cluster = %(primary)s, layout = layout + %(promoted)s, member = NULL, in_flight = 0, rate = 0
WHERE shard = %(shard)s

-- write_membership --
-- The outbox's row, at last. While a cluster is owed records, which are kept by shard, there are no more or fewer shards.
UPDATE {state}
SET membership = membership + 1, promotions = promotions + %(promoted)s, layout = layout + %(promoted)s, attach_wanted = NULL, attach_how = NULL,
    attach_closing = false, shards_wanted = CASE WHEN NOT %(owes)s THEN shards_wanted END, shards_wanted_at = CASE WHEN NOT %(owes)s THEN shards_wanted_at END

-- ask --
-- Asks the leader for an owed cluster (null: for none any more).
UPDATE {state} SET attach_wanted = %(cluster)s, attach_how = %(how)s

-- refuse --
-- Withdraws that, if the fence names this view, and says why the cluster stays owed.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), withdrawn AS (
    UPDATE {state} SET attach_wanted = NULL, attach_how = NULL, attach_closing = false
    WHERE EXISTS (SELECT FROM fence) AND attach_wanted = %(cluster)s
    RETURNING true
), told AS (
    UPDATE {cluster} SET reason = %(reason)s WHERE name = %(cluster)s AND part = 'owed' AND EXISTS (SELECT FROM withdrawn)
)
SELECT EXISTS (SELECT FROM fence)

-- caught_up --
-- What Postgres knows of an owed cluster's ledger, once it has what it missed.
UPDATE {ledger}
SET ledger_topic_id = %(topic_id)s, witnessed_batch = %(batch)s, ledger_offset = %(offset)s, transactional_ids = %(transactional_ids)s::text[]
WHERE shard = %(shard)s AND cluster = %(cluster)s

-- forget_batches --
-- Nothing is owed any more.
DELETE FROM {owed}

-- forget_rows --
DELETE FROM {owed_rows}
