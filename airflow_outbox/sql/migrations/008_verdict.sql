-- What the verdict needs: when the outbox was paused and published last, and what members can't do.

-- In the order of all locks: the shard before the outbox.
ALTER TABLE {shard} ADD COLUMN published_at TIMESTAMPTZ;
ALTER TABLE {state} ADD COLUMN paused_at TIMESTAMPTZ;

CREATE TABLE {trouble} (
    member  TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    error   TEXT NOT NULL,
    since   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- The new table belongs to the owner of the others. Roles that harvest may tell, and roles that look may read: those
-- that may do the like with parked records. Roles that may count what was published, or pause, may say when.
DO $migration$
DECLARE
    trouble CONSTANT regclass := to_regclass({trouble_text});
    granted RECORD;
BEGIN
    EXECUTE format(
        'ALTER TABLE %s OWNER TO %I', trouble, (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass({shard_text}))
    );
    FOR granted IN
        SELECT acl.grantee, format('%s ON %s', string_agg(privilege_type, ', ' ORDER BY privilege_type), trouble) AS privileges
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({parked_text}) AND acl.grantee <> relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        GROUP BY acl.grantee
        UNION ALL
        SELECT DISTINCT acl.grantee, format('UPDATE (%I) ON %s', attname || '_at', attrelid::regclass)
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE (attrelid, attname) IN ((to_regclass({shard_text}), 'published'), (to_regclass({state_text}), 'paused'))
              AND privilege_type = 'UPDATE'
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
