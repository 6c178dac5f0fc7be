-- Parked records are found by the cause of their refusal, and by their transaction: who waits for a ticket asks for them. A table of
-- goharvest's has no such column.

CREATE INDEX ON {parked} (cause, kafka_topic) WHERE discarded_at IS NULL AND cause IS NOT NULL;

DO $migration$
BEGIN
    CREATE INDEX ON {parked} (transaction_id);
EXCEPTION WHEN undefined_column THEN
    NULL;
END
$migration$;
