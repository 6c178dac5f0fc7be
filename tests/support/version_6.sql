-- The tables of an outbox named outbox at schema version 6, frozen; without the triggers against loaded rows.

CREATE TABLE outbox (
    id                  BIGSERIAL PRIMARY KEY,
    create_time         TIMESTAMPTZ NOT NULL DEFAULT now(),
    kafka_topic         VARCHAR(249) NOT NULL,
    kafka_key           VARCHAR(100) NOT NULL,
    kafka_value         VARCHAR(10000),
    kafka_header_keys   TEXT[] NOT NULL DEFAULT ARRAY[]::TEXT[],
    kafka_header_values TEXT[] NOT NULL DEFAULT ARRAY[]::TEXT[],
    leader_id           UUID,
    kafka_partition     INTEGER CHECK (kafka_partition >= 0),
    transaction_id      XID8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT headers_have_one_dimension CHECK (array_ndims(kafka_header_keys) = 1 AND array_ndims(kafka_header_values) = 1),
    CONSTRAINT id_can_be_read CHECK (id > -9223372036854775808)
);

CREATE INDEX ON outbox (transaction_id);

CREATE TABLE outbox_leader (
    shard             INTEGER PRIMARY KEY CHECK (shard >= 0),
    outbox_id         UUID NOT NULL,
    schema_version    INTEGER NOT NULL,
    incarnation       INTEGER NOT NULL DEFAULT 1,
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
    paused            BOOLEAN NOT NULL DEFAULT false,
    handover_asked_at TIMESTAMPTZ,
    delivery          TEXT,
    system_identifier BIGINT,
    timeline          INTEGER,
    table_oid         OID,
    ledger_topic_id   TEXT,
    witnessed_batch   BIGINT NOT NULL DEFAULT 0,
    ledger_offset     BIGINT NOT NULL DEFAULT 0,
    highest_id        BIGINT NOT NULL DEFAULT 0,
    beats             BIGINT NOT NULL DEFAULT 0,
    halted            TEXT,
    watermark         PG_SNAPSHOT,
    covered_batch     BIGINT NOT NULL DEFAULT 0,
    topics            JSONB NOT NULL DEFAULT jsonb_build_object(),
    uncovered         JSONB NOT NULL DEFAULT jsonb_build_object(),
    transactional_ids TEXT[] NOT NULL DEFAULT ARRAY[]::text[],
    database_oid      OID,
    begun_view        UUID,
    secret            UUID NOT NULL DEFAULT gen_random_uuid()
);

CREATE VIEW outbox_published AS
SELECT shard, outbox_id, incarnation, delivery, CASE WHEN doubt IS NULL THEN watermark END AS watermark, covered_batch AS batch, topics, doubt,
       secret
FROM outbox_leader AS fence
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

CREATE TABLE outbox_adopted (
    incarnation INTEGER PRIMARY KEY,
    adopted_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    adopted_by  TEXT NOT NULL DEFAULT current_user,
    differences TEXT NOT NULL,
    reason      TEXT NOT NULL
);

CREATE TABLE outbox_commits (
    app_id         TEXT NOT NULL,
    version        BIGINT NOT NULL,
    transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id(),
    records        BIGINT NOT NULL,
    committed_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    incarnation    INTEGER,
    owner          NAME NOT NULL DEFAULT current_user,
    PRIMARY KEY (app_id, version, owner)
);

CREATE TABLE outbox_parked (LIKE outbox);
ALTER TABLE outbox_parked
    DROP COLUMN leader_id,
    ALTER COLUMN kafka_key DROP NOT NULL,
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
CREATE INDEX ON outbox_parked (kafka_topic, kafka_key, number) WHERE discarded_at IS NULL;
CREATE INDEX ON outbox_parked (retry_at) WHERE discarded_at IS NULL AND retry_at IS NOT NULL;
CREATE INDEX ON outbox_parked (requested) WHERE discarded_at IS NULL AND requested IS NOT NULL;
CREATE INDEX ON outbox_parked (cause, kafka_topic) WHERE discarded_at IS NULL AND cause IS NOT NULL;
CREATE INDEX ON outbox_parked (transaction_id);

INSERT INTO outbox_leader (shard, outbox_id, schema_version) VALUES (0, gen_random_uuid(), 6);

CREATE FUNCTION outbox_asked() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    NEW.requested_by := session_user;
    NEW.requested_at := clock_timestamp();
    RETURN NEW;
END
$function$;
REVOKE ALL ON FUNCTION outbox_asked() FROM PUBLIC;
CREATE TRIGGER asked BEFORE UPDATE OF request_reason ON outbox_parked FOR EACH ROW EXECUTE FUNCTION outbox_asked();
CREATE TRIGGER requested BEFORE UPDATE OF requested ON outbox_parked FOR EACH ROW
    WHEN (NEW.requested IS NOT NULL AND NEW.requested IS DISTINCT FROM OLD.requested) EXECUTE FUNCTION outbox_asked();
