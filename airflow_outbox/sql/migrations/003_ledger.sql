-- Exactly once: how the outbox was last harvested, its database's history, and what Postgres has witnessed of the
-- ledger.

ALTER TABLE {leader}
    ADD COLUMN delivery          TEXT,
    ADD COLUMN transactional_id  TEXT,
    ADD COLUMN system_identifier BIGINT,
    ADD COLUMN timeline          INTEGER,
    ADD COLUMN table_oid         OID,
    ADD COLUMN ledger_topic_id   TEXT,
    ADD COLUMN witnessed_batch   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN ledger_offset     BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN highest_id        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN beats             BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN halted            TEXT,
    ADD COLUMN watermark         PG_SNAPSHOT,
    ADD COLUMN covered_batch     BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN topics            JSONB NOT NULL DEFAULT jsonb_build_object(),
    ADD COLUMN uncovered         JSONB NOT NULL DEFAULT jsonb_build_object();

-- Earlier releases harvested at least once.
UPDATE {leader} SET delivery = 'at_least_once' WHERE view IS NOT NULL;

CREATE TABLE {adopted} (
    incarnation INTEGER PRIMARY KEY,
    adopted_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    adopted_by  TEXT NOT NULL DEFAULT current_user,
    differences TEXT NOT NULL,
    reason      TEXT NOT NULL
);

-- Records that could not be published, and those that wait behind them. Discarded ones stay until they are purged.
CREATE TABLE {parked} (LIKE {outbox});
ALTER TABLE {parked}
    DROP COLUMN leader_id,
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

CREATE VIEW {published} AS
SELECT shard, outbox_id, incarnation, delivery, watermark, covered_batch AS batch, topics FROM {leader};
