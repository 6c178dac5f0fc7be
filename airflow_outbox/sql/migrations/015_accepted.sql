-- Several clusters: what one had alone when it was accepted, and whether a cluster is about to count again.

-- Statements that use several of these tables name the shards first, and some of them the outbox before the ledger. None
-- of them is under way once the shards are locked; and whoever asks for the clusters alone does not wait for the ledger.
LOCK TABLE {shard}, {ledger}, {state} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {ledger} ADD COLUMN skipped JSONB;
ALTER TABLE {state} ADD COLUMN attach_closing BOOLEAN NOT NULL DEFAULT false;

-- Roles that may change what is known of a ledger, and which clusters count, may change these.
DO $migration$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT DISTINCT acl.grantee, format(wanted.privileges, attrelid::regclass) AS privileges
        FROM (VALUES (to_regclass({ledger_text}), 'witnessed_batch', 'UPDATE (skipped) ON %s'),
                     (to_regclass({state_text}), 'membership', 'UPDATE (attach_closing) ON %s')
             ) AS wanted (relation, name, privileges)
        JOIN pg_attribute ON attrelid = wanted.relation AND attname = wanted.name
        CROSS JOIN aclexplode(attacl) AS acl
        WHERE privilege_type = 'UPDATE'
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
