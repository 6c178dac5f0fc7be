-- Several shards: which slots each has, and how many layouts there were.

-- In the order of all locks: the shard before the outbox.
ALTER TABLE {shard}
    ADD COLUMN layout     INTEGER NOT NULL DEFAULT 1,
    ADD COLUMN slots      INTEGER[],
    ADD COLUMN slots_view UUID,
    ADD CONSTRAINT slots_are_known CHECK (slots IS NULL OR view IS NOT DISTINCT FROM slots_view);
ALTER TABLE {state}
    ADD COLUMN layout           INTEGER NOT NULL DEFAULT 1,
    ADD COLUMN shards           INTEGER NOT NULL DEFAULT 1 CHECK (shards BETWEEN 1 AND 64),
    ADD COLUMN shards_wanted    INTEGER CHECK (shards_wanted BETWEEN 1 AND 64),
    ADD COLUMN shards_wanted_at TIMESTAMPTZ;
ALTER TABLE {trouble} ADD COLUMN shard INTEGER;

CREATE OR REPLACE VIEW {published} AS
SELECT shard, fence.outbox_id, fence.incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch,
       topics, doubt, fence.secret, fence.layout, slots IS NOT NULL AS is_one_of_many
FROM {shard} AS fence
CROSS JOIN {state} AS state
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN pg_is_in_recovery() THEN 'this server is a standby; ask the primary'
        WHEN state.halted IS NOT NULL THEN state.halted
        WHEN state.system_identifier <> (SELECT present.system_identifier FROM pg_control_system() AS present)
            THEN 'this is another database cluster than the one that was harvested'
        WHEN state.timeline <> ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            THEN 'the database is on another timeline than ' || state.timeline || ', on which it was harvested: a standby was promoted, or a backup restored'
        WHEN state.database_oid <> (SELECT oid FROM pg_database WHERE datname = current_database())
            THEN 'this is a copy of the database that was harvested'
        WHEN state.table_oid IS DISTINCT FROM coalesce(beside.oid, to_regclass(quote_ident(own.name))::oid) AND state.table_oid IS NOT NULL
            THEN 'the outbox''s table was dropped and created again'
    END AS doubt
    FROM (SELECT relnamespace AS schema, left(relname::text, -length('_state')) AS name FROM pg_class WHERE oid = state.tableoid) AS own
    LEFT JOIN pg_class AS beside ON beside.relnamespace = own.schema AND beside.relname = own.name
) AS history
WHERE slots IS NULL OR slots <> ARRAY[]::integer[];

-- Roles that may take over may do so in any layout; roles that may halt carry out resharding; roles that may see how far
-- everything is published see in which layout.
DO $migration$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT DISTINCT acl.grantee, format(wanted.privilege, attrelid::regclass) AS privileges
        FROM (VALUES (to_regclass({shard_text}), 'view', 'UPDATE', 'UPDATE (slots_view, slots, layout) ON %s'),
                     (to_regclass({state_text}), 'halted', 'UPDATE', 'UPDATE (layout, shards, shards_wanted, shards_wanted_at) ON %s'),
                     (to_regclass({published_text}), 'watermark', 'SELECT', 'SELECT (layout, is_one_of_many) ON %s')
             ) AS wanted (relation, name, kind, privilege)
        JOIN pg_attribute ON attrelid = wanted.relation AND attname = wanted.name
        CROSS JOIN aclexplode(attacl) AS acl
        WHERE privilege_type = wanted.kind
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
