-- Parked records are found by their transaction, too: who waits for a ticket asks for them. A table of goharvest's has no such column.

DO $migration$
BEGIN
    CREATE INDEX ON {parked} (transaction_id);
EXCEPTION WHEN undefined_column THEN
    NULL;
END
$migration$;
