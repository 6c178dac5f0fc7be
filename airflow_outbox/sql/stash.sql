-- Statements of a caller's own transaction: stash records, name the ticket, commit once under an id.
-- They run with the caller's search_path, so they name functions and operators so that no other schema's can fit
-- better. {outbox}, {state}: the tables; {key_type}, {value_type}, {header_type}: the types of the columns.

-- stash --
-- Inserts records, given as one JSON array, in their order, and returns the ticket.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    SELECT pg_catalog.now(), topic, key, value, names, "values"
    FROM ROWS FROM (pg_catalog.json_to_recordset(%(records)s::pg_catalog.text::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {state}

-- stash_with_partition --
-- The same for an outbox that has the column kafka_partition.
WITH stashed AS (
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition)
    SELECT pg_catalog.now(), topic, key, value, names, "values", partition
    FROM ROWS FROM (pg_catalog.json_to_recordset(%(records)s::pg_catalog.text::json)
        AS (topic text, key {key_type}, value {value_type}, names text[], "values" {header_type}[], partition integer))
        WITH ORDINALITY AS record (topic, key, value, names, "values", partition, place)
    ORDER BY place
)
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {state}

-- ticket --
-- The ticket of the caller's transaction, for a writer that fills the outbox by its own statement.
SELECT outbox_id::text, incarnation, pg_catalog.pg_current_xact_id()::text FROM {state}

-- commit_once --
-- Enters a job's commit. Waits for a rival that is committing. Returns no row when the same role's job and version has
-- committed before.
INSERT INTO {commits} (app_id, version, records, incarnation)
VALUES (%(app_id)s, %(version)s, %(records)s, (SELECT incarnation FROM {state}))
ON CONFLICT DO NOTHING
RETURNING transaction_id::text

-- earlier_commit --
-- The same role's earlier commit of a job and version, with the parts of its ticket. Incarnation 0, which no outbox is
-- ever in: nobody knows the transaction's.
SELECT entry.transaction_id::text, entry.records, state.outbox_id, coalesce(entry.incarnation, 0)
FROM {commits} AS entry CROSS JOIN {state} AS state
WHERE app_id = %(app_id)s AND version = %(version)s AND owner IN (current_user, ''::pg_catalog.name)
