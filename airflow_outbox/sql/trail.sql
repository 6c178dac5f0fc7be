-- The trail: what operators have asked for.

-- noted --
-- Part of each request, beside the rows that it has `asked`: notes it, unless there is none. Postgres enters who and when.
INSERT INTO {trail} (action, on_behalf_of, matched, reason, records)
SELECT %(action)s::text, %(on_behalf_of)s::text, %(matched)s::text, %(noted_reason)s::text, CASE WHEN %(counts)s THEN count(*) END
FROM asked
HAVING count(*) > 0

-- enter --
-- Enters a request that goes on beside it in the same transaction.
INSERT INTO {trail} (action, on_behalf_of, matched, reason, records)
VALUES (%(action)s::text, %(on_behalf_of)s::text, %(matched)s::text, %(noted_reason)s::text, %(records)s::bigint)

-- allow_rename --
-- Lets the trail name renamings, too: run in the transaction of one. The list is that of `schema.sql`, and `rename`. A
-- migration that writes the list again has to keep `rename` in it.
DO $trail$
DECLARE
    narrow CONSTANT TEXT := (
        SELECT quote_ident(conname) FROM pg_constraint
        WHERE conrelid = to_regclass({trail_text}) AND contype = 'c' AND strpos(pg_get_constraintdef(oid), '''handover''') > 0
              AND strpos(pg_get_constraintdef(oid), '''rename''') = 0
    );
BEGIN
    IF narrow IS NOT NULL THEN
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %s', to_regclass({trail_text}), narrow);
        ALTER TABLE {trail}
            ADD CHECK (action IN ('pause', 'resume', 'handover', 'retry', 'discard', 'purge', 'replay', 'adopt', 'reshard', 'detach', 'attach', 'promote', 'rename'));
    END IF;
END
$trail$

-- read --
-- The requests, the last one first, or those before one of them.
SELECT number, asked_at, asked_by, on_behalf_of, action, matched, reason, records
FROM {trail}
WHERE %(before)s::bigint IS NULL OR number < %(before)s::bigint
ORDER BY number DESC
LIMIT %(limit)s
