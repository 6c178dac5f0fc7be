-- Consumer groups' positions as replicators saw them when they looked last. It needs no fence: a replicator changes nothing
-- but its own row.

-- tell --
-- Notes what a replicator saw. Without groups (null) it could not look, and those that it saw before stay.
INSERT INTO {positions} AS known (member, report, groups)
VALUES (%(member)s, %(report)s::jsonb, coalesce(%(groups)s::jsonb, jsonb_build_array()))
ON CONFLICT (member) DO UPDATE
SET report = EXCLUDED.report, groups = coalesce(%(groups)s::jsonb, known.groups), told_at = EXCLUDED.told_at

-- over --
-- Removes a replicator's row, and whatever was told more than a day ago: those replicators have gone.
DELETE FROM {positions} WHERE member = %(member)s OR told_at < clock_timestamp() - interval '1 day'

-- groups --
-- The groups as they were seen by the replicator that was heard last.
SELECT groups FROM {positions} ORDER BY told_at DESC LIMIT 1
