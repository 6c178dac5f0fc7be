-- Indexes find parked records by the cause of their refusal, and by their transaction, for waiters for a ticket.
-- goharvest's table has no such column.

CREATE INDEX ON {parked} (cause, kafka_topic) WHERE discarded_at IS NULL AND cause IS NOT NULL;

DO $migration$
BEGIN
    CREATE INDEX ON {parked} (transaction_id);
EXCEPTION WHEN undefined_column THEN
    NULL;
END
$migration$;
