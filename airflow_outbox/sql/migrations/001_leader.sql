-- From goharvest's bare table (version 0) to version 1: the tables beside it. The outbox itself stays as it is.

CREATE TABLE {leader} (
    shard          INTEGER PRIMARY KEY CHECK (shard >= 0),
    outbox_id      UUID NOT NULL,
    schema_version INTEGER NOT NULL,
    incarnation    INTEGER NOT NULL DEFAULT 1,
    view           UUID,
    backends       JSONB NOT NULL DEFAULT jsonb_build_array(),
    took_over_at   TIMESTAMPTZ,
    heartbeat_at   TIMESTAMPTZ,
    published      BIGINT NOT NULL DEFAULT 0,
    last_error     TEXT,
    last_error_at  TIMESTAMPTZ
);

CREATE TABLE {commits} (
    app_id         TEXT NOT NULL,
    version        BIGINT NOT NULL,
    transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id(),
    records        BIGINT NOT NULL,
    committed_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (app_id, version)
);

INSERT INTO {leader} (shard, outbox_id, schema_version) VALUES (0, gen_random_uuid(), 1);
