-- Which clusters belong to an outbox. {cluster}: one row each; {ledger}: one for each shard there; {shard}: the shards.

-- known --
SELECT name FROM {cluster} ORDER BY name

-- lock --
-- Every shard, while the clusters change; and whether it was ever harvested, which each of them would have to know.
SELECT delivery IS NOT NULL AS is_harvested FROM {shard} ORDER BY shard FOR UPDATE

-- add --
-- More clusters, with this part. Fresh views void what leaders have read before: so they begin again.
WITH added AS (
    INSERT INTO {ledger} (shard, cluster)
    SELECT shard, name FROM {shard} CROSS JOIN unnest(%(clusters)s::text[]) AS name
), backups AS (
    INSERT INTO {cluster} (name, part, reason) SELECT name, %(part)s, %(reason)s FROM unnest(%(clusters)s::text[]) AS name
)
UPDATE {shard} SET (view, slots_view) = (SELECT fresh, fresh FROM gen_random_uuid() AS fresh) WHERE view IS NOT NULL

-- count --
-- One more membership. While a cluster is owed records, there are no more or fewer shards.
UPDATE {state}
SET membership = membership + 1, shards_wanted = CASE WHEN %(part)s <> 'owed' THEN shards_wanted END,
    shards_wanted_at = CASE WHEN %(part)s <> 'owed' THEN shards_wanted_at END
