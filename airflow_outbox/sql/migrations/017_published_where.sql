-- On which clusters everything is that is published.

-- Statements that use both name the view before the clusters. None of them is under way once the view is locked.
ALTER VIEW IF EXISTS {published} RESET (security_barrier);
ALTER TABLE {cluster} ADD COLUMN lacks PG_SNAPSHOT;

CREATE OR REPLACE VIEW {published} AS
SELECT shard, fence.outbox_id, fence.incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch,
       topics, doubt, fence.secret, fence.layout, slots IS NOT NULL AS is_one_of_many,
       (SELECT jsonb_object_agg(name, lacks) FROM {cluster} WHERE part <> 'owed') AS clusters
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

-- Roles that may change which clusters count may change this; roles that may see how far everything is published see where.
DO $migration$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT DISTINCT acl.grantee, format(wanted.privilege, attrelid::regclass) AS privileges
        FROM (VALUES (to_regclass({cluster_text}), 'part', 'UPDATE', 'UPDATE (lacks) ON %s'),
                     (to_regclass({published_text}), 'watermark', 'SELECT', 'SELECT (clusters) ON %s')
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
