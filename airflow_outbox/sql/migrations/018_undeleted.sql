-- Records that are published or parked, and that Postgres would not delete; and an archive in a publication of all tables.

CREATE TABLE {undeleted} (
    id          BIGINT PRIMARY KEY,
    create_time TIMESTAMPTZ NOT NULL,
    shard       INTEGER NOT NULL,
    published   BOOLEAN NOT NULL,
    reason      TEXT NOT NULL,
    noted_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    tried_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON {undeleted} (tried_at);

-- The table belongs to the owner of the others. Roles that may change or read parked records may change or read these.
DO $migration$
DECLARE
    added   CONSTANT regclass := to_regclass({undeleted_text});
    granted RECORD;
BEGIN
    EXECUTE format(
        'ALTER TABLE %s OWNER TO %s', added, (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass({shard_text}))
    );
    FOR granted IN
        SELECT acl.grantee, format('%s ON %s', string_agg(privilege_type, ', ' ORDER BY privilege_type), added) AS privileges
        FROM pg_class CROSS JOIN aclexplode(relacl) AS acl
        WHERE oid = to_regclass({parked_text}) AND acl.grantee <> relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        GROUP BY acl.grantee
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;

-- Rows of a table that has neither a key nor this can't be deleted while a publication has it.
DO $migration$
DECLARE
    part REGCLASS;
BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass({archive_text}) LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', part);
    END LOOP;
END
$migration$;
