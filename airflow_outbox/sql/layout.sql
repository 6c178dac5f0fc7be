-- Layouts: how many shards an outbox has, and which slots each of them. Another layout gives all shards fresh views, so that
-- no decision of a leader of an earlier one has any effect.
-- All take their locks in the order of fence.sql: shards by number, then ledgers, then the outbox.

-- add_shards --
-- The rows of shards that there have never been. They have no slots until a layout gives them some.
WITH added AS (
    INSERT INTO {shard} (shard, outbox_id, incarnation, secret, layout, primary_cluster, slots)
    SELECT number, outbox_id, incarnation, secret, layout, (SELECT name FROM {cluster} WHERE part = 'primary'), ARRAY[]::integer[]
    FROM {state} CROSS JOIN generate_series(0, %(shards)s - 1) AS number
    ON CONFLICT DO NOTHING
)
INSERT INTO {ledger} (shard, cluster) SELECT number, name FROM generate_series(0, %(shards)s - 1) AS number CROSS JOIN {cluster}
ON CONFLICT DO NOTHING

-- lock --
-- Every shard, while the layout changes.
SELECT shard, view, watermark::text, highest_id, delivery, slots FROM {shard} ORDER BY shard FOR UPDATE

-- write_shard --
-- What a shard is in a new layout. Nobody leads it, and nobody can go on who did.
UPDATE {shard}
SET layout = %(layout)s, slots = %(slots)s::integer[], view = %(view)s, slots_view = %(view)s, watermark = %(watermark)s::pg_snapshot,
    highest_id = %(highest_id)s, delivery = %(delivery)s, member = NULL, in_flight = 0, rate = 0
WHERE shard = %(shard)s

-- write --
-- The outbox's row, at last.
UPDATE {state}
SET layout = %(layout)s, shards = %(shards)s, shards_wanted = NULL, shards_wanted_at = NULL

-- ask --
-- Asks for another number of shards (null: for none any more). The leader of the first one brings it about.
UPDATE {state} SET shards_wanted = %(shards)s::integer, shards_wanted_at = CASE WHEN %(shards)s::integer IS NOT NULL THEN clock_timestamp() END

-- layout --
-- How many layouts there were, the shards there are, and those that somebody asks for (null: no others).
SELECT layout, shards, shards_wanted FROM {state}

-- owed --
-- The clusters that are owed records.
SELECT name FROM {cluster} WHERE part = 'owed' ORDER BY name

-- known --
-- How many shards there are, with those that have no slots in this layout.
SELECT count(*) FROM {shard}
