-- A member tells by itself that it can't do something. It needs no fence, since it changes nothing but its own row.

-- tell --
-- Notes a member's trouble, or that it lasts. It is a new one after a minute of silence, or if its kind or
-- shard is another.
INSERT INTO {trouble} AS known (member, kind, error, shard) VALUES (%(member)s, %(kind)s, %(error)s, %(shard)s)
ON CONFLICT (member) DO UPDATE
SET kind = EXCLUDED.kind, error = EXCLUDED.error, shard = EXCLUDED.shard, told_at = EXCLUDED.told_at,
    since = CASE WHEN known.kind = EXCLUDED.kind AND known.shard IS NOT DISTINCT FROM EXCLUDED.shard AND known.told_at > EXCLUDED.told_at - interval '1 minute' THEN known.since ELSE EXCLUDED.since END

-- over --
-- Removes a member's trouble, and whatever was told more than a day ago: those members have gone.
DELETE FROM {trouble} WHERE member = %(member)s OR told_at < clock_timestamp() - interval '1 day'
