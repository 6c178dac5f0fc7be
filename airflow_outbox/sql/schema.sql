-- The tables of an outbox, whole, at schema version 18; `transaction_id_trigger.sql` adds the outbox's trigger.
-- {outbox}, {state}, {commits}, ...: the tables' names. {key_type}, {value_type}, {header_type}: TEXT, VARCHAR(n) or BYTEA;
-- {lane_type}: TEXT or BYTEA, as the key.
-- The first eight columns of the outbox are goharvest's. Run in one transaction.

CREATE TABLE {outbox} (
    id                  BIGSERIAL PRIMARY KEY,
    create_time         TIMESTAMPTZ NOT NULL DEFAULT now(),
    kafka_topic         VARCHAR(249) NOT NULL,
    kafka_key           {key_type} NOT NULL,
    kafka_value         {value_type},
    kafka_header_keys   TEXT[] NOT NULL DEFAULT ARRAY[]::TEXT[],
    kafka_header_values {header_type}[] NOT NULL DEFAULT ARRAY[]::{header_type}[],
    leader_id           UUID,
    kafka_partition     INTEGER CHECK (kafka_partition >= 0),
    transaction_id      XID8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT headers_have_one_dimension CHECK (array_ndims(kafka_header_keys) = 1 AND array_ndims(kafka_header_values) = 1),
    CONSTRAINT id_can_be_read CHECK (id > -9223372036854775808)
);

CREATE INDEX ON {outbox} (transaction_id);

-- The outbox: one row. `schema_version` is that of all these tables. The history is that which the incarnation's first
-- leader found (null: there was none yet). The `secret` proves announcements. `shards` says how
-- many the outbox has, `layout` counts its numbers of shards up to now, `shards_wanted` is what somebody asks for (null:
-- no change).
CREATE TABLE {state} (
    is_only           BOOLEAN PRIMARY KEY DEFAULT true CHECK (is_only),
    outbox_id         UUID NOT NULL,
    schema_version    INTEGER NOT NULL,
    incarnation       INTEGER NOT NULL DEFAULT 1,
    secret            UUID NOT NULL DEFAULT gen_random_uuid(),
    system_identifier BIGINT,
    timeline          INTEGER,
    table_oid         OID,
    database_oid      OID,
    halted            TEXT,
    paused            BOOLEAN NOT NULL DEFAULT false,
    paused_at         TIMESTAMPTZ,
    layout            INTEGER NOT NULL DEFAULT 1,
    shards            INTEGER NOT NULL DEFAULT 1 CHECK (shards BETWEEN 1 AND 64),
    shards_wanted     INTEGER CHECK (shards_wanted BETWEEN 1 AND 64),
    shards_wanted_at  TIMESTAMPTZ,
    membership        INTEGER NOT NULL DEFAULT 1,
    promotions        INTEGER NOT NULL DEFAULT 0,
    attach_wanted     TEXT,
    attach_how        TEXT CHECK (attach_how IN ('accept', 'reset')),
    attach_closing    BOOLEAN NOT NULL DEFAULT false
);

-- The clusters that the outbox is published to. All but the `owed` ones count: a record is published when it is on all of
-- these. `since` is when the cluster got its part, and `reason` is why, or why it could not be attached. A transaction that
-- `lacks` sees may have records that the cluster does not have: it began to count after them (null: it has all).
-- `<outbox>_state` has how many memberships there were (`membership`), how many of them had another primary (`promotions`),
-- and which owed cluster somebody asks for (`attach_wanted`, null: none), and how; `attach_closing`: it has what it missed, and
-- is about to count, so that no shard but the first is led.
CREATE TABLE {cluster} (
    name   TEXT PRIMARY KEY,
    part   TEXT NOT NULL CHECK (part IN ('primary', 'backup', 'owed')),
    since  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    reason TEXT,
    lacks  PG_SNAPSHOT
);
CREATE UNIQUE INDEX ON {cluster} (part) WHERE part = 'primary';

-- The shard: one row each. `view` is its fence. `outbox_id`, `incarnation` and `secret` are copies of
-- the outbox's, so that a purge or a park locks this row alone and finds in it all that it was decided under. They are
-- changed only together with the originals, in one transaction. So is `layout`. `highest_id` is that of a published
-- record. `slots` are those that the shard harvests: all (null), which takes no slots, or none (an empty array): an earlier
-- layout had more shards. A release that knows slots writes its view into `slots_view`, too; no other leads a shard that has slots.
-- `lagging_after`, `stalled_after` and `silence` are the bounds, in seconds, by which the last leader was configured to judge.
-- `primary_cluster` is a copy, too; `begun_primary` is what it was when `begun_view` began.
CREATE TABLE {shard} (
    shard             INTEGER PRIMARY KEY CHECK (shard >= 0),
    outbox_id         UUID NOT NULL,
    incarnation       INTEGER NOT NULL,
    view              UUID,
    backends          JSONB NOT NULL DEFAULT jsonb_build_array(),
    took_over_at      TIMESTAMPTZ,
    heartbeat_at      TIMESTAMPTZ,
    published         BIGINT NOT NULL DEFAULT 0,
    last_error        TEXT,
    last_error_at     TIMESTAMPTZ,
    member            TEXT,
    in_flight         BIGINT NOT NULL DEFAULT 0,
    rate              DOUBLE PRECISION NOT NULL DEFAULT 0,
    handover_asked_at TIMESTAMPTZ,
    delivery          TEXT,
    highest_id        BIGINT NOT NULL DEFAULT 0,
    beats             BIGINT NOT NULL DEFAULT 0,
    watermark         PG_SNAPSHOT,
    covered_batch     BIGINT NOT NULL DEFAULT 0,
    topics            JSONB NOT NULL DEFAULT jsonb_build_object(),
    uncovered         JSONB NOT NULL DEFAULT jsonb_build_object(),
    begun_view        UUID,
    secret            UUID NOT NULL,
    published_at      TIMESTAMPTZ,
    layout            INTEGER NOT NULL DEFAULT 1,
    slots             INTEGER[],
    slots_view        UUID,
    lagging_after     DOUBLE PRECISION,
    stalled_after     DOUBLE PRECISION,
    silence           DOUBLE PRECISION,
    primary_cluster   TEXT NOT NULL DEFAULT 'primary',
    begun_primary     TEXT,
    CONSTRAINT slots_are_known CHECK (slots IS NULL OR view IS NOT DISTINCT FROM slots_view)
);

-- The shard on a cluster: a row for each shard and cluster. It has what Postgres knows of the shard's ledger
-- there, and the transactional ids that were used there since they were last fenced. `skipped` are records that the cluster
-- had alone when it was accepted: it does not get them a second time.
CREATE TABLE {ledger} (
    shard             INTEGER NOT NULL CHECK (shard >= 0),
    cluster           TEXT NOT NULL DEFAULT 'primary',
    ledger_topic_id   TEXT,
    witnessed_batch   BIGINT NOT NULL DEFAULT 0,
    ledger_offset     BIGINT NOT NULL DEFAULT 0,
    transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    skipped           JSONB,
    PRIMARY KEY (shard, cluster)
);

-- How far everything is published, one row per shard, up to a second late. A transaction whose id a watermark sees has
-- been decided, and all of its committed records are published. `topics` counts the records published in this
-- incarnation, up to and with `batch`. `doubt` is why nobody can tell (null: it can be told); no watermark is shown
-- then. `clusters` are those on which all of it is, each with what it `lacks` of that (null: nothing). The `secret` proves
-- announcements. Transaction ids mean something only in the history that the outbox's row records. A comparison with it
-- that is added here must accept what is not recorded yet (null).
CREATE VIEW {published} AS
SELECT shard, fence.outbox_id, fence.incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch,
       topics, doubt, fence.secret, fence.layout, slots IS NOT NULL AS is_one_of_many,
       (SELECT jsonb_object_agg(name, lacks) FROM {cluster} WHERE part <> 'owed') AS clusters
FROM {shard} AS fence
CROSS JOIN {state} AS state
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN pg_is_in_recovery() THEN 'this server is a standby; ask the primary'
        WHEN state.halted IS NOT NULL THEN state.halted
        WHEN state.system_identifier <> (SELECT present.system_identifier FROM pg_control_system() AS present)
            THEN 'this is another database cluster than the one that was harvested'
        WHEN state.timeline <> ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            THEN 'the database is on another timeline than ' || state.timeline || ', on which it was harvested: a standby was promoted, or a backup restored'
        WHEN state.database_oid <> (SELECT oid FROM pg_database WHERE datname = current_database())
            THEN 'this is a copy of the database that was harvested'
        WHEN state.table_oid IS DISTINCT FROM coalesce(beside.oid, to_regclass(quote_ident(own.name))::oid) AND state.table_oid IS NOT NULL
            THEN 'the outbox''s table was dropped and created again'
    END AS doubt
    FROM (SELECT relnamespace AS schema, left(relname::text, -length('_state')) AS name FROM pg_class WHERE oid = state.tableoid) AS own
    LEFT JOIN pg_class AS beside ON beside.relnamespace = own.schema AND beside.relname = own.name
) AS history
WHERE slots IS NULL OR slots <> ARRAY[]::integer[];

-- Other histories that operators have accepted, one row per incarnation.
CREATE TABLE {adopted} (
    incarnation INTEGER PRIMARY KEY,
    adopted_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    adopted_by  TEXT NOT NULL DEFAULT current_user,
    differences TEXT NOT NULL,
    reason      TEXT NOT NULL
);

-- Jobs' commits. A job that is tried again under the same id and version finds its row here and writes nothing. The
-- transaction's id means something in its incarnation only (null: an older release entered it). An entry counts for the
-- role that entered it, or for all, if an older release did ('').
CREATE TABLE {commits} (
    app_id         TEXT NOT NULL,
    version        BIGINT NOT NULL,
    transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id(),
    records        BIGINT NOT NULL,
    committed_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    incarnation    INTEGER,
    owner          NAME NOT NULL DEFAULT current_user,
    PRIMARY KEY (app_id, version, owner)
);

-- Records that could not be published, and those that wait behind them. Discarded ones stay until they are purged.
CREATE TABLE {parked} (LIKE {outbox});
ALTER TABLE {parked}
    DROP COLUMN leader_id,
    ALTER COLUMN kafka_key DROP NOT NULL,  -- a record without one, if the outbox allows that, can be parked, too
    ADD COLUMN number          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ADD COLUMN incarnation     INTEGER NOT NULL,
    ADD COLUMN cause           TEXT,
    ADD COLUMN reason          TEXT,
    ADD COLUMN parked_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN attempts        INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN last_attempt_at TIMESTAMPTZ,
    ADD COLUMN retry_at        TIMESTAMPTZ,
    ADD COLUMN requested       TEXT CHECK (requested IN ('retry', 'discard')),
    ADD COLUMN requested_by    TEXT,
    ADD COLUMN requested_at    TIMESTAMPTZ,
    ADD COLUMN request_reason  TEXT,
    ADD COLUMN discarded_at    TIMESTAMPTZ,
    ADD COLUMN purged_at       TIMESTAMPTZ,
    -- The key, as short as an index needs it. One that was shortened is longer than any that was not.
    ADD COLUMN lane_key        {lane_type} GENERATED ALWAYS AS (
        CASE WHEN octet_length(kafka_key) <= 100 THEN kafka_key ELSE substr(kafka_key, 1, 100) || md5(kafka_key)::{lane_type} END
    ) STORED,
    ADD COLUMN requested_in    XID8;
CREATE INDEX ON {parked} (kafka_topic, lane_key, number) WHERE discarded_at IS NULL;
CREATE INDEX ON {parked} (retry_at) WHERE discarded_at IS NULL AND retry_at IS NOT NULL;
CREATE INDEX ON {parked} (requested) WHERE discarded_at IS NULL AND requested IS NOT NULL;
CREATE INDEX ON {parked} (cause, kafka_topic, number) WHERE discarded_at IS NULL AND cause IS NOT NULL;
CREATE INDEX ON {parked} (kafka_topic, number) WHERE discarded_at IS NULL;
CREATE INDEX ON {parked} (kafka_topic, number) WHERE discarded_at IS NOT NULL;
CREATE INDEX ON {parked} (transaction_id);

-- Records that are gone for harvesters, published or (unless `published`) parked, and that Postgres would not delete from the
-- outbox: something refers to them, or a trigger objects. `shard` is that of the leader who noted this.
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

INSERT INTO {state} (outbox_id, schema_version) VALUES (gen_random_uuid(), 19);
INSERT INTO {shard} (shard, outbox_id, incarnation, secret) SELECT 0, outbox_id, incarnation, secret FROM {state};
INSERT INTO {ledger} (shard) VALUES (0);
INSERT INTO {cluster} (name, part) VALUES ('primary', 'primary');

-- What clusters are owed: the batches that were published while some cluster did not count, and their records in published
-- order. Both are empty while all clusters count. A record that went into a partition of its key's has none here.
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

-- The troubles that members have now: a row for each member that can't do something, repeated every few seconds, and the
-- shard that it is about (null: all).
CREATE TABLE {trouble} (
    member  TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    error   TEXT NOT NULL,
    since   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    shard   INTEGER
);

-- The processes that harvest, whether they lead or stand by: a row each, told every few seconds.
CREATE TABLE {member} (
    member     TEXT PRIMARY KEY,
    release    TEXT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    told_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- Consumer groups' positions as replicators saw them when they looked last: a row each. `report` sums it up; `groups` are
-- the groups, at most 200, first those that need somebody.
CREATE TABLE {positions} (
    member  TEXT PRIMARY KEY,
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    report  JSONB NOT NULL,
    groups  JSONB NOT NULL
);

-- How the outbox was doing: a row each ten seconds for a day, then its slot is written again. While nobody leads, nothing
-- is written. An updated row has room for its next version in its page, so that the table does not grow.
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

-- A request bears the session user's name and its transaction, whatever it says.
CREATE FUNCTION {asked}() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    NEW.requested_by := session_user;
    NEW.requested_at := clock_timestamp();
    NEW.requested_in := pg_current_xact_id();
    RETURN NEW;
END
$function$;
REVOKE ALL ON FUNCTION {asked}() FROM PUBLIC;
CREATE TRIGGER asked BEFORE UPDATE OF request_reason ON {parked} FOR EACH ROW EXECUTE FUNCTION {asked}();
CREATE TRIGGER requested BEFORE UPDATE OF requested ON {parked} FOR EACH ROW
    WHEN (NEW.requested IS NOT NULL AND NEW.requested IS DISTINCT FROM OLD.requested) EXECUTE FUNCTION {asked}();

-- What operators have asked for, one row a request, written in its transaction. `on_behalf_of` is somebody whom the role
-- vouches for, such as Airflow's user. Nobody may change or remove a row.
CREATE TABLE {trail} (
    number         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    asked_by       TEXT NOT NULL DEFAULT session_user,
    on_behalf_of   VARCHAR(200),
    action         TEXT NOT NULL CHECK (action IN ('pause', 'resume', 'handover', 'retry', 'discard', 'purge', 'replay', 'adopt', 'reshard', 'detach', 'attach', 'promote')),
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
