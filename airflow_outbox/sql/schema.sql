-- The tables of an outbox, whole, at schema version 8; `loaded_rows.sql` adds the outbox's trigger.
-- {outbox}, {state}, {commits}, ...: the tables' names. {key_type}, {value_type}, {header_type}: TEXT, VARCHAR(n) or BYTEA.
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
-- leader found (null: there was none yet). The `secret` proves announcements.
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
    paused_at         TIMESTAMPTZ
);

-- The shard: one row each (there is one). `view` is its fence. `outbox_id`, `incarnation` and `secret` are copies of
-- the outbox's, so that a purge or a park locks this row alone and finds in it all that it was decided under. They are
-- changed only together with the originals, in one transaction. `highest_id` is that of a published record.
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
    published_at      TIMESTAMPTZ
);

-- The shard on a cluster: a row for each shard and cluster (there is one of each). What Postgres knows of the shard's ledger
-- there, and the transactional ids that were used there since they were last fenced.
CREATE TABLE {ledger} (
    shard             INTEGER NOT NULL CHECK (shard >= 0),
    cluster           TEXT NOT NULL DEFAULT 'primary',
    ledger_topic_id   TEXT,
    witnessed_batch   BIGINT NOT NULL DEFAULT 0,
    ledger_offset     BIGINT NOT NULL DEFAULT 0,
    transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    PRIMARY KEY (shard, cluster)
);

-- How far everything is published, one row per shard, up to a second late. A transaction whose id a watermark sees has
-- been decided, and all of its committed records are published. `topics` counts the records published in this
-- incarnation, up to and with `batch`. `doubt` is why nobody can tell (null: it can be told); no watermark is shown
-- then. The `secret` proves announcements. Transaction ids mean something only in the history that the outbox's row
-- records. A comparison with it that is added here must accept what is not recorded yet (null).
CREATE VIEW {published} AS
SELECT shard, fence.outbox_id, fence.incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch,
       topics, doubt, fence.secret
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
) AS history;

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
    ADD COLUMN purged_at       TIMESTAMPTZ;
CREATE INDEX ON {parked} (kafka_topic, kafka_key, number) WHERE discarded_at IS NULL;
CREATE INDEX ON {parked} (retry_at) WHERE discarded_at IS NULL AND retry_at IS NOT NULL;
CREATE INDEX ON {parked} (requested) WHERE discarded_at IS NULL AND requested IS NOT NULL;
CREATE INDEX ON {parked} (cause, kafka_topic) WHERE discarded_at IS NULL AND cause IS NOT NULL;
CREATE INDEX ON {parked} (transaction_id);

INSERT INTO {state} (outbox_id, schema_version) VALUES (gen_random_uuid(), 8);
INSERT INTO {shard} (shard, outbox_id, incarnation, secret) SELECT 0, outbox_id, incarnation, secret FROM {state};
INSERT INTO {ledger} (shard) VALUES (0);

-- What members can't do now, one row a member that can't; it repeats it every few seconds.
CREATE TABLE {trouble} (
    member  TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    error   TEXT NOT NULL,
    since   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    told_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

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
