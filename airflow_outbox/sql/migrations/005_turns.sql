-- Several producers take turns: the fence row names all transactional ids that are in use since they were last fenced.

ALTER TABLE {leader} ADD COLUMN transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[];
UPDATE {leader} SET transactional_ids = ARRAY[transactional_id] WHERE transactional_id IS NOT NULL;
ALTER TABLE {leader} DROP COLUMN transactional_id;
