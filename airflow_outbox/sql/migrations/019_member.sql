-- The processes that harvest, whether they lead or stand by.

CREATE TABLE {member} (
    member     TEXT PRIMARY KEY,
    release    TEXT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    told_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- The table belongs to the owner of the others. Roles that may tell of troubles, or read them, may do so with this.
DO $migration$
DECLARE
    added   CONSTANT regclass := to_regclass({member_text});
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
