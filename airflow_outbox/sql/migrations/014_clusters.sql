-- Several clusters: which ones an outbox has, in which part, and what those get that do not count now.

-- In the order of all locks: the shard before the outbox.
ALTER TABLE {shard}
    ADD COLUMN primary_cluster TEXT NOT NULL DEFAULT 'primary',
    ADD COLUMN begun_primary   TEXT;
UPDATE {shard} SET begun_primary = 'primary' WHERE begun_view IS NOT NULL;
ALTER TABLE {state}
    ADD COLUMN membership    INTEGER NOT NULL DEFAULT 1,
    ADD COLUMN promotions    INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN attach_wanted TEXT,
    ADD COLUMN attach_how    TEXT CHECK (attach_how IN ('accept', 'reset'));

CREATE TABLE {cluster} (
    name   TEXT PRIMARY KEY,
    part   TEXT NOT NULL CHECK (part IN ('primary', 'backup', 'owed')),
    since  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    reason TEXT
);
CREATE UNIQUE INDEX ON {cluster} (part) WHERE part = 'primary';
INSERT INTO {cluster} (name, part) VALUES ('primary', 'primary');

CREATE TABLE {owed} (
    shard   INTEGER NOT NULL,
    batch   BIGINT NOT NULL,
    entry   JSON NOT NULL,
    size    BIGINT NOT NULL,
    kept_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, batch)
);
CREATE TABLE {owed_rows} AS
SELECT 0 AS shard, 0::bigint AS batch, 0 AS place, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
       NULL::integer AS kafka_partition
FROM {outbox} WITH NO DATA;
ALTER TABLE {owed_rows} ADD PRIMARY KEY (shard, batch, place);

DO $migration$
DECLARE
    known CONSTANT TEXT := (SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = to_regclass({trail_text}) AND contype = 'c');
BEGIN
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %s', to_regclass({trail_text}), known);
END
$migration$;
ALTER TABLE {trail}
    ADD CHECK (action IN ('pause', 'resume', 'handover', 'retry', 'discard', 'purge', 'replay', 'adopt', 'reshard', 'detach', 'attach', 'promote'));

-- The new tables belong to the owner of the others. Roles that may take over may do so with any clusters; roles that may
-- pause may ask for a cluster; roles that may tell what a member can't do may keep what clusters are owed; roles that may
-- read the trail may read these tables.
DO $migration$
DECLARE
    holder  CONSTANT TEXT := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass({shard_text}));
    granted RECORD;
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %s', to_regclass({cluster_text}), holder);
    EXECUTE format('ALTER TABLE %s OWNER TO %s', to_regclass({owed_text}), holder);
    EXECUTE format('ALTER TABLE %s OWNER TO %s', to_regclass({owed_rows_text}), holder);
    FOR granted IN
        SELECT DISTINCT acl.grantee, format(wanted.privileges, attrelid::regclass) AS privileges
        FROM (VALUES (to_regclass({shard_text}), 'view', 'UPDATE (primary_cluster, begun_primary) ON %s'),
                     (to_regclass({state_text}), 'halted', 'UPDATE (membership, promotions, attach_wanted, attach_how) ON %s'),
                     (to_regclass({state_text}), 'paused', 'UPDATE (attach_wanted, attach_how) ON %s')
             ) AS wanted (relation, name, privileges)
        JOIN pg_attribute ON attrelid = wanted.relation AND attname = wanted.name
        CROSS JOIN aclexplode(attacl) AS acl
        WHERE privilege_type = 'UPDATE'
    UNION
        SELECT DISTINCT acl.grantee, format('SELECT ON %s', added)
        FROM pg_class CROSS JOIN aclexplode(relacl) AS acl
        CROSS JOIN unnest(ARRAY[to_regclass({cluster_text}), to_regclass({owed_text}), to_regclass({owed_rows_text})]) AS added
        WHERE oid = to_regclass({trail_text}) AND privilege_type = 'SELECT' AND acl.grantee <> relowner
    UNION
        SELECT DISTINCT acl.grantee, wanted.privileges
        FROM pg_class CROSS JOIN aclexplode(relacl) AS acl
        CROSS JOIN unnest(ARRAY[
            format('UPDATE (part, since, reason) ON %s', to_regclass({cluster_text})),
            format('INSERT, DELETE ON %s, %s', to_regclass({owed_text}), to_regclass({owed_rows_text}))
        ]) AS wanted (privileges)
        WHERE oid = to_regclass({trouble_text}) AND privilege_type = 'INSERT' AND acl.grantee <> relowner
    LOOP
        EXECUTE format(
            'GRANT %s TO %s', granted.privileges,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END
        );
    END LOOP;
END
$migration$;
