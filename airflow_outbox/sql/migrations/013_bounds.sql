-- A leader says by which bounds it judges, so that whoever looks judges alike. The trail has more kinds of requests.

ALTER TABLE {shard}
    ADD COLUMN lagging_after DOUBLE PRECISION,
    ADD COLUMN stalled_after DOUBLE PRECISION,
    ADD COLUMN silence       DOUBLE PRECISION;

DO $migration$
DECLARE
    known CONSTANT TEXT := (SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = to_regclass({trail_text}) AND contype = 'c');
BEGIN
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %s', to_regclass({trail_text}), known);
END
$migration$;
ALTER TABLE {trail}
    ADD CHECK (action IN ('pause', 'resume', 'handover', 'retry', 'discard', 'purge', 'replay', 'adopt', 'reshard'));

-- Roles that may take over may say so.
DO $migration$
DECLARE
    granted RECORD;
BEGIN
    FOR granted IN
        SELECT DISTINCT acl.grantee
        FROM pg_attribute CROSS JOIN aclexplode(attacl) AS acl
        WHERE attrelid = to_regclass({shard_text}) AND attname = 'view' AND privilege_type = 'UPDATE'
    LOOP
        EXECUTE format(
            'GRANT UPDATE (lagging_after, stalled_after, silence) ON %s TO %s', to_regclass({shard_text}),
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
