-- A history of the last day.

CREATE TABLE {history} (
    shard            INTEGER NOT NULL CHECK (shard >= 0),
    slot             INTEGER NOT NULL CHECK (slot BETWEEN 0 AND 8639),
    noted_at         TIMESTAMPTZ NOT NULL,
    state            TEXT NOT NULL,
    backlog          BIGINT,
    backlog_is_exact BOOLEAN,
    oldest_age       DOUBLE PRECISION,
    rate             DOUBLE PRECISION NOT NULL,
    latency_p50      DOUBLE PRECISION,
    latency_p99      DOUBLE PRECISION,
    PRIMARY KEY (shard, slot)
) WITH (fillfactor = 80);

-- The new table belongs to the owner of the others. Roles that may tell what a member can't do may note, and roles that
-- may read that may read.
DO $migration$
DECLARE
    history CONSTANT regclass := to_regclass({history_text});
    granted RECORD;
BEGIN
    EXECUTE format(
        'ALTER TABLE %s OWNER TO %I', history, (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass({shard_text}))
    );
    FOR granted IN
        SELECT acl.grantee, CASE privilege_type WHEN 'UPDATE'
            THEN 'UPDATE (noted_at, state, backlog, backlog_is_exact, oldest_age, rate, latency_p50, latency_p99)' ELSE privilege_type END AS privilege
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({trouble_text}) AND acl.grantee <> relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE')
    LOOP
        EXECUTE format(
            'GRANT %s ON %s TO %s', granted.privilege, history,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
