-- Facts and wishes for operators: who leads and how fast, whether harvesting is paused, and a wish for another leader.

ALTER TABLE {leader}
    ADD COLUMN member            TEXT,
    ADD COLUMN in_flight         BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN rate              DOUBLE PRECISION NOT NULL DEFAULT 0,
    ADD COLUMN paused            BOOLEAN NOT NULL DEFAULT false,
    ADD COLUMN handover_asked_at TIMESTAMPTZ;
