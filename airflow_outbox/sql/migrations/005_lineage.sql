-- The history includes the database's own oid: a copy in the same cluster has the same table. And the fence row names the last view that
-- began to harvest, which alone can have published what the row does not know of. The next leader to begin fills in both.

ALTER TABLE {leader}
    ADD COLUMN IF NOT EXISTS database_oid OID,
    ADD COLUMN IF NOT EXISTS begun_view   UUID;
