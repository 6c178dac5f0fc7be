-- Rows loaded with their own transaction ids: by pg_restore --data-only, by a copy of a backup, by replication. A
-- window goes by transaction ids, so it would never show a row with a past one, and show a row with a future one again
-- and again.
-- {outbox}: the table; {loaded}: the trigger function beside it; {owner}: the owner of both. Only for a table that has
-- the column transaction_id.

-- guard --
-- Gives each inserted row the id of the transaction that inserts it, and keeps it. Rows that take the column's default
-- cost only a comparison. The trigger comes AFTER the insert, since a BEFORE trigger makes COPY write row by row. It is
-- on in replication, too (ENABLE ALWAYS). It runs as the outbox's owner, since a role that may insert a row need not be
-- allowed to update it. Nobody else may make a trigger of the function: one that is there is dropped, with the rights
-- that somebody may have to it. Updates have no trigger: it would make every mark 4 to 8% dearer, and only the owner may
-- update the column.
DROP TRIGGER IF EXISTS loaded ON {outbox};
DROP FUNCTION IF EXISTS {loaded}();
CREATE FUNCTION {loaded}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    EXECUTE format('UPDATE %I.%I SET transaction_id = pg_current_xact_id() WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME) USING NEW.id;
    RETURN NULL;
END
$function$;
ALTER FUNCTION {loaded}() OWNER TO {owner};
REVOKE ALL ON FUNCTION {loaded}() FROM PUBLIC;
CREATE TRIGGER loaded AFTER INSERT ON {outbox}
FOR EACH ROW WHEN (NEW.transaction_id <> pg_current_xact_id()) EXECUTE FUNCTION {loaded}();
ALTER TABLE {outbox} ENABLE ALWAYS TRIGGER loaded

-- read_again --
-- Rows that were loaded before the trigger was on may be of transactions that a window has passed. So those with future
-- ids get this transaction's, no watermark is believed, and the term under way ends: the next one reads the whole table.
UPDATE {outbox} SET transaction_id = pg_current_xact_id() WHERE transaction_id > pg_current_xact_id();
UPDATE {shard} SET view = NULL, slots_view = NULL, watermark = NULL

-- owner --
-- The outbox's owner.
SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass(%(outbox)s)

-- is_guarded --
-- Whether the trigger is there and always on.
SELECT EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid = to_regclass(%(outbox)s) AND tgfoid = to_regproc(%(loaded)s) AND tgenabled = 'A' AND tgname = 'loaded'
)
