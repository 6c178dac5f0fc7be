-- What the verdict needs: when the outbox was paused and published last, and what members can't do.

ALTER TABLE {leader} ADD COLUMN paused_at TIMESTAMPTZ, ADD COLUMN published_at TIMESTAMPTZ;

CREATE TABLE {trouble} (
    member  TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    error   TEXT NOT NULL,
    since   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- Roles that harvest may tell, and roles that look may read: those that may do the like with parked records. Roles that
-- may pause may say since when.
DO $migration$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS grantee,
               string_agg(privilege_type, ', ' ORDER BY privilege_type) AS privileges
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({parked_text}) AND acl.grantee <> relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        GROUP BY acl.grantee
    LOOP
        EXECUTE $grant$GRANT $grant$ || granted.privileges || $grant$ ON {trouble} TO $grant$ || granted.grantee;
    END LOOP;
    FOR granted IN
        SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS grantee
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE attrelid = to_regclass({leader_text}) AND attname = 'paused' AND privilege_type = 'UPDATE'
    LOOP
        EXECUTE $grant$GRANT UPDATE (paused_at) ON {leader} TO $grant$ || granted.grantee;
    END LOOP;
END
$migration$;
