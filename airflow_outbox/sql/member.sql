-- Which processes are there to lead. A member tells by itself that it is there. It needs no fence, since it changes nothing
-- but its own row.

-- tell --
-- Notes that a member is there, and for how long it has been; and removes those that have said nothing for an hour.
WITH gone AS (
    DELETE FROM {member} WHERE told_at < clock_timestamp() - interval '1 hour' AND member <> %(member)s
)
INSERT INTO {member} (member, release, started_at)
VALUES (%(member)s, %(release)s, clock_timestamp() - make_interval(secs => %(age)s))
ON CONFLICT (member) DO UPDATE SET release = EXCLUDED.release, started_at = EXCLUDED.started_at, told_at = EXCLUDED.told_at

-- over --
-- Removes a member that ends.
DELETE FROM {member} WHERE member = %(member)s

-- list --
-- The members that were heard last, and the shards that each leads.
SELECT member, release, started_at, extract(epoch FROM clock_timestamp() - told_at)::float8 AS silent_for,
       ARRAY(SELECT shard FROM {shard} AS fence WHERE fence.member = known.member AND slots IS DISTINCT FROM ARRAY[]::integer[] ORDER BY shard) AS shards
FROM {member} AS known
ORDER BY told_at DESC, member
LIMIT 100
