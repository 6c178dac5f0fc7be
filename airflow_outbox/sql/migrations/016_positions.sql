-- Consumer groups' positions as replicators see them: a table for operators, the page and the metrics.

CREATE TABLE {positions} (
    member  TEXT PRIMARY KEY,
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    report  JSONB NOT NULL,
    groups  JSONB NOT NULL
);

-- The table belongs to the owner of the others. Roles that may tell what a member can't do may tell this, and roles that may
-- read the one may read the other.
DO $migration$
DECLARE
    added   CONSTANT regclass := to_regclass({positions_text});
    granted RECORD;
BEGIN
    EXECUTE format(
        'ALTER TABLE %s OWNER TO %s', added, (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass({shard_text}))
    );
    FOR granted IN
        SELECT acl.grantee, format('%s ON %s', string_agg(privilege_type, ', ' ORDER BY privilege_type), added) AS privileges
        FROM pg_class CROSS JOIN aclexplode(relacl) AS acl
        WHERE oid = to_regclass({trouble_text}) AND acl.grantee <> relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        GROUP BY acl.grantee
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
