-- Several producers take turns: the fence row names all transactional ids in use since they were last fenced. The
-- history includes the database's own oid: a copy in the same cluster has the same table. The fence row names the last
-- view that began to harvest, which alone can have published records unknown to the row. The next leader to begin fills
-- in both.

ALTER TABLE {leader}
    ADD COLUMN transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    ADD COLUMN database_oid      OID,
    ADD COLUMN begun_view        UUID;
UPDATE {leader} SET transactional_ids = ARRAY[transactional_id] WHERE transactional_id IS NOT NULL;
ALTER TABLE {leader} DROP COLUMN transactional_id;

-- Tickets are answered only in the history that they were made in.

-- No watermark is shown while harvesting is halted, nor where the database has another history than the leader row
-- records.
CREATE OR REPLACE VIEW {published} AS
SELECT shard, outbox_id, incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch, topics, doubt
FROM {leader} AS fence
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN pg_is_in_recovery() THEN 'this server is a standby; ask the primary'
        WHEN halted IS NOT NULL THEN halted
        WHEN system_identifier <> (SELECT present.system_identifier FROM pg_control_system() AS present)
            THEN 'this is another database cluster than the one that was harvested'
        WHEN timeline <> ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            THEN 'the database is on another timeline than ' || timeline || ', on which it was harvested: a standby was promoted, or a backup restored'
        WHEN database_oid <> (SELECT oid FROM pg_database WHERE datname = current_database())
            THEN 'this is a copy of the database that was harvested'
        WHEN table_oid IS DISTINCT FROM coalesce(beside.oid, to_regclass(quote_ident(own.name))::oid) AND table_oid IS NOT NULL
            THEN 'the outbox''s table was dropped and created again'
    END AS doubt
    FROM (SELECT relnamespace AS schema, left(relname::text, -length('_leader')) AS name FROM pg_class WHERE oid = fence.tableoid) AS own
    LEFT JOIN pg_class AS beside ON beside.relnamespace = own.schema AND beside.relname = own.name
) AS history;

DO $migration$
DECLARE
    grantee TEXT;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE attrelid = to_regclass({published_text}) AND attname = 'watermark' AND privilege_type = 'SELECT'
    LOOP
        EXECUTE $grant$GRANT SELECT (doubt) ON {published} TO $grant$ || grantee;
    END LOOP;
END
$migration$;

-- Earlier commits belong to the incarnation of their time.
ALTER TABLE {commits} ADD COLUMN IF NOT EXISTS incarnation INTEGER;
UPDATE {commits} AS entry
SET incarnation = coalesce((SELECT max(adopted.incarnation) FROM {adopted} AS adopted WHERE adopted.adopted_at <= entry.committed_at), 1)
WHERE incarnation IS NULL;

-- If the outbox allows records without a key, these can be parked and archived, too.
ALTER TABLE {parked} ALTER COLUMN kafka_key DROP NOT NULL;
ALTER TABLE IF EXISTS {archive} ALTER COLUMN kafka_key DROP NOT NULL;
