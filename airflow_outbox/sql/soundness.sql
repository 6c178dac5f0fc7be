-- Problems that `init`, `check` and the harvester look for before they trust the tables of an outbox.

-- problems --
-- Each problem of a relation, in words. `names` and `kinds` are relations that must or may be there. A relation is
-- trusted if it belongs to the outbox's owner, to the owner of its schema or database, who could drop all of it, or to
-- a superuser. So are its triggers' functions.
WITH outbox AS (
    SELECT oid, relowner, relnamespace FROM pg_class WHERE oid = to_regclass(%(outbox)s)
), used AS (
    SELECT relation.*, wanted.kind, relation.oid = outbox.oid AS is_outbox
    FROM unnest(%(names)s::text[], %(kinds)s::text[]) AS wanted (name, kind)
    JOIN pg_class AS relation ON relation.oid = to_regclass(wanted.name)
    CROSS JOIN outbox
    UNION ALL
    SELECT relation.*, 'partition', false
    FROM outbox CROSS JOIN pg_inherits JOIN pg_class AS relation ON relation.oid = inhrelid
    WHERE inhparent = to_regclass(%(archive)s)
), trusted AS (
    SELECT oid FROM pg_roles WHERE rolsuper
    UNION SELECT relowner FROM outbox
    UNION SELECT nspowner FROM outbox JOIN pg_namespace ON pg_namespace.oid = relnamespace
    UNION SELECT datdba FROM pg_database WHERE datname = current_database()
)
SELECT relname::text, problem
FROM (
    SELECT relname, 1 AS place, 'belongs to ' || pg_get_userbyid(relowner) || ', but the outbox belongs to '
           || pg_get_userbyid((SELECT relowner FROM outbox)) AS problem
    FROM used WHERE relowner NOT IN (SELECT oid FROM trusted)
    UNION ALL
    SELECT relname, 2, 'is ' || CASE relkind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table'
           WHEN 'p' THEN 'a partitioned table' WHEN 'r' THEN 'a table' ELSE 'no table' END || ', but must be '
           || CASE kind WHEN 'view' THEN 'a view' WHEN 'archive' THEN 'a partitioned table' ELSE 'a table' END
    FROM used WHERE relkind <> CASE kind WHEN 'view' THEN 'v' WHEN 'archive' THEN 'p' ELSE 'r' END::"char"
    UNION ALL
    SELECT relname, 3, 'is unlogged: a crash of Postgres empties it' FROM used WHERE relpersistence <> 'p' AND relkind IN ('r', 'p')
    UNION ALL
    SELECT relname, 4, 'is a partition, or inherits from another table'
    FROM used WHERE kind <> 'partition' AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = used.oid)
    UNION ALL
    SELECT relname, 5, 'has tables that inherit from it'
    FROM used WHERE kind <> 'archive' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = used.oid)
    UNION ALL
    SELECT relname, 6, 'has the rule ' || rulename FROM used JOIN pg_rewrite ON ev_class = used.oid WHERE rulename <> '_RETURN'
    UNION ALL
    SELECT relname, 7, 'has the trigger ' || tgname || ', whose function belongs to ' || pg_get_userbyid(proowner)
    FROM used JOIN pg_trigger ON tgrelid = used.oid AND NOT tgisinternal JOIN pg_proc AS function ON function.oid = tgfoid
    WHERE proowner NOT IN (SELECT oid FROM trusted)
    UNION ALL
    -- As bits: for each row, before; on an insert, a delete, an update. The parked table has two of its own.
    SELECT relname, 8, 'has the trigger ' || tgname || ', which may change or keep back what a harvester writes there: drop it, or make it an AFTER trigger'
    FROM used JOIN pg_trigger ON tgrelid = used.oid AND NOT tgisinternal
    WHERE NOT is_outbox AND tgenabled <> 'D' AND tgtype & 1 <> 0 AND tgtype & 2 <> 0
          AND tgtype & (4 + 8 + CASE WHEN tgname IN ('asked', 'requested') THEN 0 ELSE 16 END) <> 0
    UNION ALL
    SELECT relname, 9, 'has row level security, which hides rows from this role' FROM used WHERE row_security_active(used.oid)
    UNION ALL
    SELECT relname, 10, 'has no primary key' FROM used
    WHERE kind = 'table' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = used.oid AND indisprimary)
    UNION ALL
    SELECT archive.relname, 11, 'has no column ' || attname || ' ' || format_type(atttypid, NULL)
    FROM used AS archive CROSS JOIN outbox JOIN pg_attribute AS wanted ON wanted.attrelid = outbox.oid
    WHERE archive.kind = 'archive' AND attnum > 0 AND NOT attisdropped AND attname <> 'leader_id'
          AND NOT EXISTS (SELECT FROM pg_attribute AS there WHERE there.attrelid = archive.oid AND there.attname = wanted.attname
                          AND there.atttypid = wanted.atttypid AND NOT there.attisdropped)
) AS found
ORDER BY relname, place
