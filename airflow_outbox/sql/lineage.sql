-- The statements for lineage, on connections with the role's own search path. So every function is named with its
-- schema, and every operator finds exactly its types in pg_catalog.

-- location --
-- The database, the schema of tables whose schema is not named, and the outbox's (null: there is no such table).
SELECT pg_catalog.current_database()::pg_catalog.text, pg_catalog.current_schema()::pg_catalog.text, (
    SELECT place.nspname::pg_catalog.text
    FROM pg_catalog.pg_class AS relation
    JOIN pg_catalog.pg_namespace AS place ON place.oid = relation.relnamespace
    WHERE relation.oid = pg_catalog.to_regclass({outbox_text}::pg_catalog.text)::pg_catalog.oid
)

-- topics --
-- The topics that records of this incarnation were published to, in order.
SELECT DISTINCT pg_catalog.jsonb_object_keys(topics) AS topic FROM {published} ORDER BY topic
