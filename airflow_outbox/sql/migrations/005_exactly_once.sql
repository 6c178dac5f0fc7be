-- Several producers take turns: the fence row names all transactional ids that are in use since they were last fenced. The history
-- includes the database's own oid: a copy in the same cluster has the same table. The fence row names the last view that began to harvest,
-- which alone can have published what the row does not know of. The next leader to begin fills in both.

ALTER TABLE {leader}
    ADD COLUMN transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    ADD COLUMN database_oid      OID,
    ADD COLUMN begun_view        UUID;
UPDATE {leader} SET transactional_ids = ARRAY[transactional_id] WHERE transactional_id IS NOT NULL;
ALTER TABLE {leader} DROP COLUMN transactional_id;
