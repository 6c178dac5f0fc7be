-- A trail of what operators have asked for, and indexes that show parked records page by page.

CREATE TABLE {trail} (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    asked_by       TEXT NOT NULL DEFAULT session_user,
    on_behalf_of   VARCHAR(200),
    action         TEXT NOT NULL CHECK (action IN ('pause', 'resume', 'handover', 'retry', 'discard', 'purge')),
    matched        VARCHAR(1000),
    reason         VARCHAR(1000),
    records        BIGINT,
    transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id()
);

-- Keeps the last 10,000 requests of each role, for 90 days. One role can't push out another's.
CREATE FUNCTION {pruned}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    EXECUTE format(
        'DELETE FROM %1$I.%2$I WHERE number IN (
             SELECT number FROM %1$I.%2$I
             WHERE asked_at < clock_timestamp() - interval ''90 days'' OR asked_by = session_user AND number <= (
                 SELECT number FROM %1$I.%2$I WHERE asked_by = session_user ORDER BY number DESC OFFSET 10000 LIMIT 1
             )
             FOR UPDATE SKIP LOCKED
         )', TG_TABLE_SCHEMA, TG_TABLE_NAME
    );
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION {pruned}() FROM PUBLIC;
CREATE TRIGGER pruned AFTER INSERT ON {trail} FOR EACH STATEMENT EXECUTE FUNCTION {pruned}();

-- A request for parked records names its transaction, and so its row in the trail.
ALTER TABLE {parked} ADD COLUMN requested_in XID8;
CREATE OR REPLACE FUNCTION {asked}() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    NEW.requested_by := session_user;
    NEW.requested_at := clock_timestamp();
    NEW.requested_in := pg_current_xact_id();
    RETURN NEW;
END
$function$;

-- Pages of parked records come in the order of an index.
DO $migration$
DECLARE
    parked CONSTANT regclass := to_regclass({parked_text});
    causes RECORD;
BEGIN
    FOR causes IN
        SELECT indexrelid::regclass AS name
        FROM pg_index
        WHERE indrelid = parked AND indexprs IS NULL AND ARRAY['cause', 'kafka_topic'] = ARRAY(
            SELECT attname::text FROM unnest(indkey::int2[]) WITH ORDINALITY AS part (attnum, place)
            JOIN pg_attribute USING (attnum) WHERE attrelid = parked ORDER BY place
        )
    LOOP
        EXECUTE format('DROP INDEX %s', causes.name);
    END LOOP;
END
$migration$;
CREATE INDEX ON {parked} (cause, kafka_topic, number) WHERE discarded_at IS NULL AND cause IS NOT NULL;
CREATE INDEX ON {parked} (kafka_topic, number) WHERE discarded_at IS NULL;
CREATE INDEX ON {parked} (kafka_topic, number) WHERE discarded_at IS NOT NULL;

-- The new table and its function belong to the owner of the others. Roles that may read the history may read the trail.
-- Roles that may pause, or ask for a retry, may enter what they ask for.
DO $migration$
DECLARE
    trail   CONSTANT regclass := to_regclass({trail_text});
    holder  CONSTANT TEXT := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass({shard_text}));
    granted RECORD;
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %s', trail, holder);
    EXECUTE format('ALTER FUNCTION {pruned}() OWNER TO %s', holder);
    FOR granted IN
        SELECT acl.grantee, 'SELECT' AS privilege
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({history_text}) AND acl.grantee <> relowner AND privilege_type = 'SELECT'
        UNION
        SELECT acl.grantee, 'INSERT (action, on_behalf_of, matched, reason, records)'
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({parked_text}) AND acl.grantee <> relowner AND privilege_type = 'UPDATE'
        UNION
        SELECT acl.grantee, 'INSERT (action, on_behalf_of, matched, reason, records)'
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE (attrelid, attname) IN ((to_regclass({parked_text}), 'requested'), (to_regclass({state_text}), 'paused'))
              AND privilege_type = 'UPDATE'
    LOOP
        EXECUTE format(
            'GRANT %s ON %s TO %s', granted.privilege, trail,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
