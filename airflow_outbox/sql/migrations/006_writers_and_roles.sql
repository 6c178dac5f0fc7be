-- Limits to what writers and roles can do to others.

-- No writer can insert any more what no harvester can publish. Existing rows stay, and are parked. goharvest's table,
-- which has no column transaction_id, is left as it is.

DO $migration$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass({outbox_text}) AND attname = 'transaction_id') THEN
        ALTER TABLE {outbox}
            ADD CONSTRAINT headers_have_one_dimension CHECK (array_ndims(kafka_header_keys) = 1 AND array_ndims(kafka_header_values) = 1) NOT VALID,
            ADD CONSTRAINT id_can_be_read CHECK (id > -9223372036854775808) NOT VALID;
    END IF;
END
$migration$;

-- Announcements carry a proof that only roles of the outbox can make. Acts of a job or an operator are noted under the
-- role that did them.

-- A role that may not read the secret can't announce.
ALTER TABLE {leader} ADD COLUMN secret UUID NOT NULL DEFAULT gen_random_uuid();

CREATE OR REPLACE VIEW {published} AS
SELECT shard, outbox_id, incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch, topics, doubt,
       secret
FROM {leader} AS fence
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN pg_is_in_recovery() THEN 'this server is a standby; ask the primary'
        WHEN halted IS NOT NULL THEN halted
        WHEN system_identifier <> (SELECT present.system_identifier FROM pg_control_system() AS present)
            THEN 'this is another database cluster than the one that was harvested'
        WHEN timeline <> ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            THEN 'the database is on another timeline than ' || timeline || ', on which it was harvested: a standby was promoted, or a backup restored'
        WHEN database_oid <> (SELECT oid FROM pg_database WHERE datname = current_database())
            THEN 'this is a copy of the database that was harvested'
        WHEN table_oid IS DISTINCT FROM coalesce(beside.oid, to_regclass(quote_ident(own.name))::oid) AND table_oid IS NOT NULL
            THEN 'the outbox''s table was dropped and created again'
    END AS doubt
    FROM (SELECT relnamespace AS schema, left(relname::text, -length('_leader')) AS name FROM pg_class WHERE oid = fence.tableoid) AS own
    LEFT JOIN pg_class AS beside ON beside.relnamespace = own.schema AND beside.relname = own.name
) AS history;

-- An entry counts for the role that entered it. '' is anybody: an earlier release entered it.
ALTER TABLE {commits} ADD COLUMN owner NAME NOT NULL DEFAULT '';
ALTER TABLE {commits} ALTER COLUMN owner SET DEFAULT current_user;
DO $migration$
DECLARE
    found RECORD;
BEGIN
    SELECT conname INTO found FROM pg_constraint WHERE conrelid = to_regclass({commits_text}) AND contype = 'p';
    EXECUTE $drop$ALTER TABLE {commits} DROP CONSTRAINT $drop$ || quote_ident(found.conname);
END
$migration$;
ALTER TABLE {commits} ADD PRIMARY KEY (app_id, version, owner);

-- Revokes what roles no longer need: to choose the columns that say whose entry or request it is.
DO $migration$
DECLARE
    grantee TEXT;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl
        WHERE oid = to_regclass({commits_text}) AND privilege_type = 'INSERT' AND acl.grantee <> relowner
    LOOP
        EXECUTE $grant$REVOKE INSERT ON {commits} FROM $grant$ || grantee;
        EXECUTE $grant$GRANT INSERT (app_id, version, records, incarnation) ON {commits} TO $grant$ || grantee;
    END LOOP;
    FOR grantee IN
        SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE attrelid = to_regclass({parked_text}) AND attname IN ('requested_by', 'requested_at') AND privilege_type = 'UPDATE'
    LOOP
        EXECUTE $grant$REVOKE UPDATE (requested_by, requested_at) ON {parked} FROM $grant$ || grantee;
    END LOOP;
    FOR grantee IN
        SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END
        FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) AS acl
        WHERE attrelid = to_regclass({published_text}) AND attname = 'watermark' AND privilege_type = 'SELECT'
    LOOP
        EXECUTE $grant$GRANT SELECT (secret) ON {published} TO $grant$ || grantee;
    END LOOP;
END
$migration$;

-- A request bears the session user's name, whatever it says.
CREATE FUNCTION {asked}() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    NEW.requested_by := session_user;
    NEW.requested_at := clock_timestamp();
    RETURN NEW;
END
$function$;
REVOKE ALL ON FUNCTION {asked}() FROM PUBLIC;
CREATE TRIGGER asked BEFORE UPDATE OF request_reason ON {parked} FOR EACH ROW EXECUTE FUNCTION {asked}();
CREATE TRIGGER requested BEFORE UPDATE OF requested ON {parked} FOR EACH ROW
    WHEN (NEW.requested IS NOT NULL AND NEW.requested IS DISTINCT FROM OLD.requested) EXECUTE FUNCTION {asked}();
