-- An outbox whose table has another name now, while the tables beside it keep theirs; and the renaming of all of them.

-- schema --
-- The schema of the first of these tables that is there; without any, the one in which tables are made.
SELECT coalesce((
    SELECT nspname::text
    FROM unnest(%(tables)s::text[]) WITH ORDINALITY AS wanted (name, place)
    JOIN pg_class ON pg_class.oid = to_regclass(wanted.name) JOIN pg_namespace ON pg_namespace.oid = relnamespace
    ORDER BY wanted.place LIMIT 1
), current_schema()::text)

-- moved --
-- The tables of a schema that were renamed alone: what each outbox was called, and what its table is called. Beside the
-- old name is what an outbox has there, and no table; the table still has the old name's trigger function, or its
-- sequence.
SELECT DISTINCT was.name, relation.relname::text
FROM (
    SELECT left(beside.relname::text, -length(kind.suffix)) AS name, beside.relnamespace AS place
    FROM pg_class AS beside
    JOIN (VALUES ('_state'), ('_leader')) AS kind (suffix) ON right(beside.relname::text, length(kind.suffix)) = kind.suffix
    WHERE beside.relkind = 'r' AND 2 = (
        SELECT count(*) FROM pg_attribute
        WHERE attrelid = beside.oid AND attname IN ('outbox_id', 'schema_version') AND NOT attisdropped
    )
) AS was
JOIN pg_class AS relation ON relation.relnamespace = was.place AND relation.relkind = 'r'
WHERE was.place = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s::text)
      AND NOT EXISTS (SELECT FROM pg_class AS there WHERE there.relnamespace = was.place AND there.relname = was.name)
      AND NOT EXISTS (
          SELECT FROM pg_class AS own
          WHERE own.relnamespace = was.place AND own.relname IN (relation.relname || '_state', relation.relname || '_leader')
      )
      AND (
          EXISTS (
              SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
              WHERE tgrelid = relation.oid AND pronamespace = was.place AND proname = was.name || '_loaded'
          ) OR EXISTS (
              SELECT FROM pg_depend JOIN pg_class AS sequence ON sequence.oid = objid
              WHERE refobjid = relation.oid AND refclassid = 'pg_class'::regclass AND classid = 'pg_class'::regclass
                    AND sequence.relkind = 'S' AND sequence.relname = was.name || '_id_seq'
          )
      )
ORDER BY 1, 2

-- leaders --
-- The members that lead, heard from within this many seconds.
SELECT DISTINCT member FROM {shard}
WHERE member IS NOT NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY member

-- there --
-- The relations of a schema that have one of these names.
SELECT relname::text FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s::text) AND relname = ANY(%(names)s::text[])

-- parts --
-- What belongs to the relations of these names and has a name of its own that begins with %(prefix)s: partitions with
-- all that they have, sequences and indexes.
WITH RECURSIVE own AS (
    SELECT oid FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s::text) AND relname = ANY(%(names)s::text[])
    UNION
    SELECT inhrelid FROM own JOIN pg_inherits ON inhparent = own.oid
)
SELECT relation.relname::text, relation.relkind IN ('i', 'I') AS is_index
FROM (
    SELECT oid FROM own
    UNION SELECT indexrelid FROM own JOIN pg_index ON indrelid = own.oid
    UNION SELECT objid FROM own JOIN pg_depend ON refobjid = own.oid AND refclassid = 'pg_class'::regclass
          JOIN pg_class AS sequence ON sequence.oid = objid AND sequence.relkind = 'S'
          WHERE classid = 'pg_class'::regclass
) AS part
JOIN pg_class AS relation USING (oid)
WHERE starts_with(relation.relname::text, %(prefix)s) AND relation.relname <> ALL(%(names)s::text[])
ORDER BY relation.relname

-- functions --
-- The functions of a schema that have one of these names.
SELECT DISTINCT proname::text FROM pg_proc
WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s::text) AND proname = ANY(%(names)s::text[])

-- rename_table --
ALTER TABLE {old} RENAME TO {new}

-- rename_index --
ALTER INDEX {old} RENAME TO {new}

-- rename_function --
ALTER FUNCTION {old} RENAME TO {new}

-- rename_schema --
ALTER SCHEMA {old} RENAME TO {new}
