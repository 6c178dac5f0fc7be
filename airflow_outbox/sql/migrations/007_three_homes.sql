-- The facts that were together in the rows of the shards get three homes: the outbox, the shard, and the shard on a
-- cluster. The table of the shards gets another name, so that a harvester or writer of an earlier release fails.

-- Leaders wait from here on. Readers wait only at the end, and none holds the view that it needs meanwhile.
LOCK TABLE {leader} IN EXCLUSIVE MODE;

CREATE TABLE {state} (
    is_only           BOOLEAN PRIMARY KEY DEFAULT true CHECK (is_only),
    outbox_id         UUID NOT NULL,
    schema_version    INTEGER NOT NULL,
    incarnation       INTEGER NOT NULL DEFAULT 1,
    secret            UUID NOT NULL DEFAULT gen_random_uuid(),
    system_identifier BIGINT,
    timeline          INTEGER,
    table_oid         OID,
    database_oid      OID,
    halted            TEXT,
    paused            BOOLEAN NOT NULL DEFAULT false
);
INSERT INTO {state} (outbox_id, schema_version, incarnation, secret, system_identifier, timeline, table_oid, database_oid, halted, paused)
SELECT outbox_id, schema_version, incarnation, secret, system_identifier, timeline, table_oid, database_oid, halted, paused
FROM {leader}
WHERE shard = 0;

CREATE TABLE {ledger} (
    shard             INTEGER NOT NULL CHECK (shard >= 0),
    cluster           TEXT NOT NULL DEFAULT 'primary',
    ledger_topic_id   TEXT,
    witnessed_batch   BIGINT NOT NULL DEFAULT 0,
    ledger_offset     BIGINT NOT NULL DEFAULT 0,
    transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    PRIMARY KEY (shard, cluster)
);
INSERT INTO {ledger} (shard, ledger_topic_id, witnessed_batch, ledger_offset, transactional_ids)
SELECT shard, ledger_topic_id, witnessed_batch, ledger_offset, transactional_ids
FROM {leader};

-- The new tables belong to the owner of the old one. Whoever had a right on it, or on a column of it that has moved, has
-- that right on the new ones.
DO $migration$
DECLARE
    old CONSTANT oid := to_regclass({leader_text});
    new CONSTANT oid[] := ARRAY[to_regclass({state_text}), to_regclass({ledger_text})];
    found RECORD;
BEGIN
    FOR found IN
        SELECT fresh::regclass AS home, pg_get_userbyid(relowner) AS owner
        FROM pg_class CROSS JOIN unnest(new) AS fresh
        WHERE pg_class.oid = old AND relowner <> (SELECT made.relowner FROM pg_class AS made WHERE made.oid = fresh)
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', found.home, found.owner);
    END LOOP;
    FOR found IN
        SELECT privilege_type AS privilege, fresh::regclass AS home, acl.grantee, is_grantable
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl CROSS JOIN unnest(new) AS fresh
        WHERE pg_class.oid = old AND acl.grantee <> relowner
        UNION ALL
        SELECT format('%s (%I)', privilege_type, was.attname), moved.attrelid::regclass, acl.grantee, is_grantable
        FROM pg_attribute AS was CROSS JOIN LATERAL aclexplode(was.attacl) AS acl
        JOIN pg_attribute AS moved ON moved.attrelid = ANY(new) AND moved.attname = was.attname AND moved.attnum > 0
        WHERE was.attrelid = old AND was.attname <> 'shard'
    LOOP
        EXECUTE format(
            'GRANT %s ON %s TO %s%s', found.privilege, found.home,
            CASE WHEN found.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(found.grantee)) END,
            CASE WHEN found.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
END
$migration$;

CREATE OR REPLACE VIEW {published} AS
SELECT shard, fence.outbox_id, fence.incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch,
       topics, doubt, fence.secret
FROM {leader} AS fence
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
) AS history;

ALTER TABLE {leader}
    DROP COLUMN schema_version, DROP COLUMN system_identifier, DROP COLUMN timeline, DROP COLUMN table_oid, DROP COLUMN database_oid,
    DROP COLUMN halted, DROP COLUMN paused,
    DROP COLUMN ledger_topic_id, DROP COLUMN witnessed_batch, DROP COLUMN ledger_offset, DROP COLUMN transactional_ids,
    ALTER COLUMN incarnation DROP DEFAULT, ALTER COLUMN secret DROP DEFAULT;
ALTER TABLE {leader} RENAME TO {shard_alone};
