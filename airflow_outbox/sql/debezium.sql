-- Debezium's outbox tables: the trigger on the application's table, the publication that Debezium reads it by, its slot.
-- {outbox}: our outbox; {source}: the application's table; {function}: the trigger's function; {owner}: the owner of
-- outbox and function; {publication}: Debezium's publication.

-- table --
-- The application's table: its id, schema, name, kind, whether it is temporary, and the tables that inherit from it
-- without being its partitions.
SELECT pg_class.oid, nspname, relname, relkind::text, relpersistence = 't', ARRAY(
    SELECT inhrelid::regclass::text FROM pg_inherits
    WHERE inhparent = pg_class.oid AND NOT (SELECT relispartition FROM pg_class AS child WHERE child.oid = inhrelid)
)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%(table)s)

-- columns --
-- Its columns: name, type without a length (of a domain, what it is made of), whether it is an enumeration, whether it
-- may be null, its length in characters, the digits of its seconds, its default, and of an exact number the digits and
-- how many of them are behind the point.
SELECT attname, format_type(base.oid, NULL), base.typtype = 'e', NOT attnotnull,
       CASE WHEN base.typname IN ('varchar', 'bpchar') AND modifier > 0 THEN modifier - 4 END,
       CASE WHEN base.typname = 'timestamp' AND modifier >= 0 THEN modifier END,
       pg_get_expr(adbin, adrelid),
       CASE WHEN base.typname = 'numeric' AND modifier > 0 THEN ((modifier - 4) >> 16) & 65535 END,
       CASE WHEN base.typname = 'numeric' AND modifier > 0 THEN (((modifier - 4) & 2047) # 1024) - 1024 END
FROM pg_attribute
JOIN pg_type AS own ON own.oid = atttypid
JOIN pg_type AS base ON base.oid = CASE own.typtype WHEN 'd' THEN own.typbasetype ELSE own.oid END
CROSS JOIN LATERAL (SELECT CASE own.typtype WHEN 'd' THEN own.typtypmod ELSE atttypmod END AS modifier) AS modified
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
ORDER BY attnum

-- lock --
-- Waits for the transactions that write to the table, and keeps others out until this one ends: rows before it are
-- Debezium's, rows behind it are ours. Nobody waits for longer than the time-out.
LOCK TABLE {source} IN SHARE ROW EXCLUSIVE MODE

-- lock_timeout --
SELECT set_config('lock_timeout', %(timeout)s, true)

-- make_function --
-- What the trigger does: it runs as the outbox's owner, since the application's role may have no right to the outbox.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS {body};
ALTER FUNCTION {function}() OWNER TO {owner};
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC;
COMMENT ON FUNCTION {function}() IS {comment}

-- body --
-- A row without a topic, or with one that is too long, gets a topic that Kafka refuses: it is parked, and the
-- application's transaction goes on. So does a row with a negative partition.
DECLARE
    topic text := {topic};
BEGIN
    IF topic IS NULL THEN
        topic := {no_topic};
    ELSIF length(topic) > 249 THEN
        topic := 'too long: ' || left(topic, 239);
    END IF;
    INSERT INTO {outbox} (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values{partition_column})
    VALUES (topic, {key}, {value}, {header_names}, {header_values}{partition});
    RETURN NULL;
END

-- make_trigger --
-- After the insert, so that other triggers have changed the row as they like. It is on in replication, too: Debezium
-- reads such rows from the log.
DROP TRIGGER IF EXISTS airflow_outbox ON {source};
CREATE TRIGGER airflow_outbox AFTER INSERT ON {source} FOR EACH ROW EXECUTE FUNCTION {function}();
ALTER TABLE {source} ENABLE ALWAYS TRIGGER airflow_outbox

-- drop --
DROP TRIGGER airflow_outbox ON {source};
DROP FUNCTION {function}()

-- drop_expansion --
DROP FUNCTION IF EXISTS {escape}(text);
DROP FUNCTION IF EXISTS {expand}(text, boolean);
DROP FUNCTION IF EXISTS {expand_s}(text, boolean, text);
DROP FUNCTION IF EXISTS {expand_schema}(json, boolean, text);
DROP FUNCTION IF EXISTS {expand_value}(json, boolean)

-- triggers --
-- The triggers that stash into this outbox: schema and name of their table, schema and name of the function, its body,
-- its comment, whether the trigger is always on, and whether the outbox's owner has the function.
SELECT source_schema.nspname AS schema, source.relname AS table, function_schema.nspname AS function_schema,
       proname AS function, prosrc AS body, obj_description(pg_proc.oid, 'pg_proc') AS comment,
       tgenabled = 'A' AS is_on, proowner = outbox.relowner AND prosecdef AS is_own
FROM pg_trigger
JOIN pg_class AS source ON source.oid = tgrelid
JOIN pg_namespace AS source_schema ON source_schema.oid = source.relnamespace
JOIN pg_proc ON pg_proc.oid = tgfoid
JOIN pg_namespace AS function_schema ON function_schema.oid = pronamespace
JOIN pg_class AS outbox ON outbox.oid = to_regclass(%(outbox)s)
WHERE tgname = 'airflow_outbox' AND NOT tgisinternal AND pronamespace = outbox.relnamespace
  AND NOT source.relispartition AND starts_with(proname, %(prefix)s)
ORDER BY 1, 2

-- outbox_place --
-- The outbox's schema, its owner as Postgres quotes it, and whether its key may be null.
SELECT nspname, relowner::regrole::text, NOT (
    SELECT attnotnull FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'kafka_key'
)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%(outbox)s)

-- publication --
-- A publication: whether it has the table, whether it names it, and whether it names only some of its columns or rows.
SELECT EXISTS (
    SELECT FROM pg_publication_tables AS published
    WHERE published.pubname = pg_publication.pubname
      AND to_regclass(format('%%I.%%I', published.schemaname, published.tablename)) IN (
          SELECT to_regclass(%(source)s) UNION ALL SELECT relid FROM pg_partition_tree(to_regclass(%(source)s))
      )
), named.prrelid IS NOT NULL,
    to_jsonb(named) ->> 'prqual' IS NOT NULL OR to_jsonb(named) ->> 'prattrs' IS NOT NULL
FROM pg_publication
LEFT JOIN pg_publication_rel AS named ON named.prpubid = pg_publication.oid AND named.prrelid = to_regclass(%(source)s)
WHERE pubname = %(publication)s

-- unpublish --
ALTER PUBLICATION {publication} DROP TABLE {source}

-- publish --
ALTER PUBLICATION {publication} ADD TABLE {source}

-- slot --
-- Debezium's slot in this database: whether somebody reads it, and the bytes of the log that it keeps.
SELECT active, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_replication_slots
WHERE slot_name = %(slot)s AND database = current_database() AND plugin = 'pgoutput'

-- copy_slot --
-- A copy that begins where Debezium has come to, and goes with the session.
SELECT pg_copy_logical_replication_slot(%(slot)s, %(copy)s, true)

-- unread --
-- How many inserts into the table, and its partitions, Debezium has still to read or to confirm; at most this many.
-- Postgres decodes its log for that as it does for Debezium: which tables a publication had is seen as it was then.
SELECT count(*)
FROM (
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        %(copy)s, NULL, NULL, 'proto_version', '1', 'publication_names', quote_ident(%(publication)s)
    )
    WHERE get_byte(data, 0) = ascii('I')
    LIMIT %(most)s
) AS inserts
WHERE get_byte(data, 1)::bigint << 24 | get_byte(data, 2) << 16 | get_byte(data, 3) << 8 | get_byte(data, 4) IN (
    SELECT relid::oid::bigint FROM pg_partition_tree(to_regclass(%(source)s))
    UNION ALL SELECT to_regclass(%(source)s)::oid::bigint
)

-- drop_slot --
SELECT pg_drop_replication_slot(%(copy)s)
