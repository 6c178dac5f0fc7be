-- Exactly once: read windows of records and purge what is published. {outbox}, {shard}: the tables.
-- Reading asks for no fence; purging locks the fence row, as fence.sql explains.

-- prefer_indexes --
-- For the reading connection. Outdated statistics must not make it scan the table, which may be mostly dead rows, nor
-- collect and sort the rest of a window for each of its pages. Up to Postgres 17, disabled plans cost so much that
-- Postgres would compile every such statement, for some 400 ms.
SET enable_seqscan = off;
SET enable_sort = off;
SET jit = off;
SET max_parallel_workers_per_gather = 0

-- look_briefly --
-- Bounds the statement that follows in this transaction.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true)

-- lowest_id --
-- The first record by id. While Postgres can't remove dead rows, this looks at all of those before it.
SELECT id FROM {outbox} ORDER BY id LIMIT 1

-- look --
-- What a statement sees now, and how far the log is durable. While that is what the last window saw, nothing has ended,
-- and the next window is empty.
SELECT pg_current_snapshot()::text, ({durable})::bigint

-- read_window --
-- The first page of a window: the records of transactions that the snapshot `after` does not see, by the index on
-- transaction_id. Those of transactions that had begun before it are found apart: with one condition for both, Postgres
-- may walk the index from its beginning, through all that was purged while some transaction stays open. OFFSET 0 keeps
-- the planner from walking the primary key instead, through all that was purged and not vacuumed. The first row is no
-- record. It tells what the statement saw, how far Postgres' log was written and durable by then, which table it read,
-- and the last id drawn. Each record tells its size. One that Kafka would not take comes without value and headers, and
-- one above max_size without its key, too. So a page never holds more than max_records times max_size.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint
UNION ALL (
    SELECT id, kafka_topic, CASE WHEN size <= %(max_size)s THEN {key} END, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}
    FROM (
        SELECT record.*, fits, size
        FROM (
            SELECT * FROM {outbox}
            WHERE transaction_id >= pg_snapshot_xmax(%(after)s::pg_snapshot) AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())
            UNION ALL
            SELECT * FROM {outbox} WHERE transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(%(after)s::pg_snapshot)))
        ) AS record {measured}
        WHERE {fresh}
        OFFSET 0
    ) AS due
    ORDER BY id
    LIMIT %(max_records)s
)

-- read_on --
-- A page by the primary key: of a term's first window, which is the whole table (`after` null), or a further page of a
-- window, restricted to the snapshot that the first page was read in (`within`). The rows are as above.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint
UNION ALL (
    SELECT id, kafka_topic, CASE WHEN size <= %(max_size)s THEN {key} END, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
           CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}
    FROM (
        SELECT record.*, fits, size
        FROM {outbox} AS record {measured}
        WHERE id > %(above)s AND {fresh}
          AND (%(within)s::pg_snapshot IS NULL OR pg_visible_in_snapshot(transaction_id, %(within)s::pg_snapshot))
          AND (%(after)s::pg_snapshot IS NULL OR NOT pg_visible_in_snapshot(transaction_id, %(after)s::pg_snapshot))
    ) AS due
    ORDER BY id
    LIMIT %(max_records)s
)

-- read_slots_window --
-- The same as `read_window`, of a shard among several: of each slot that has more, the first records, by the index on
-- slots and transaction_id. Slots come one after the other, and nothing is sorted across them. The last column is the
-- slot. The bound by xmin follows from the condition below it, and lets the index leave out the slot's older records,
-- where statistics let Postgres scan a whole slot.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint, NULL::integer
UNION ALL (
    SELECT page.*
    FROM unnest(%(slots)s::integer[]) AS own (slot) CROSS JOIN LATERAL (
        SELECT id, kafka_topic, CASE WHEN size <= %(max_size)s THEN {key} END, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
               CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
               CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}, slot
        FROM (
            SELECT record.*, fits, size
            FROM (
                SELECT * FROM {outbox} AS record
                WHERE {slot} = own.slot
                  AND transaction_id >= pg_snapshot_xmax(%(after)s::pg_snapshot) AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())
                UNION ALL
                SELECT * FROM {outbox} AS record
                WHERE {slot} = own.slot
                  AND transaction_id >= pg_snapshot_xmin(%(after)s::pg_snapshot)
                  AND transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(%(after)s::pg_snapshot)))
            ) AS record {measured}
            WHERE {fresh}
            OFFSET 0
        ) AS due
        ORDER BY id
        LIMIT %(slot_records)s
    ) AS page
)

-- read_slots_on --
-- The same as `read_on`, of a shard among several: each slot goes on above an id of its own, by the index on slots and
-- id.
SELECT NULL::bigint, concat_ws(' ', pg_current_snapshot(), pg_current_wal_insert_lsn() - '0/0', {durable}, {table}, {last_drawn}),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint, NULL::integer
UNION ALL (
    SELECT page.*
    FROM unnest(%(slots)s::integer[], %(aboves)s::bigint[]) AS own (slot, above) CROSS JOIN LATERAL (
        SELECT id, kafka_topic, CASE WHEN size <= %(max_size)s THEN {key} END, CASE WHEN fits AND size <= %(max_size)s THEN kafka_value END,
               CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_keys END,
               CASE WHEN fits AND size <= %(max_size)s THEN kafka_header_values END, {partition}, size, {transaction_id}, slot
        FROM (
            SELECT record.*, fits, size
            FROM {outbox} AS record {measured}
            WHERE {slot} = own.slot AND id > own.above AND {fresh}
              AND (%(within)s::pg_snapshot IS NULL OR pg_visible_in_snapshot(transaction_id, %(within)s::pg_snapshot))
              AND (%(after)s::pg_snapshot IS NULL OR NOT pg_visible_in_snapshot(transaction_id, %(after)s::pg_snapshot))
        ) AS due
        ORDER BY id
        LIMIT %(slot_records)s
    ) AS page
)

-- lowest_of_slots --
-- The first record of each slot by id, as `lowest_id`.
SELECT lowest.id
FROM unnest(%(slots)s::integer[]) AS own (slot) CROSS JOIN LATERAL (SELECT id FROM {outbox} AS record WHERE {slot} = own.slot ORDER BY id LIMIT 1) AS lowest

-- durable --
-- Part of `read_window`, `read_on` and `flushed`: how far Postgres' log is durable, as far as this session may say so
-- without a wait. That is how far it is on disk. Where commits wait for standbys it is unknown (0), since not everybody
-- may see the standbys' positions.
CASE WHEN current_setting('synchronous_commit') = 'local' OR current_setting('synchronous_standby_names') = ''
     THEN pg_current_wal_flush_lsn() - '0/0' ELSE 0 END

-- table_read --
-- Part of `read_window` and `read_on`: the table's oid and its file's number, which TRUNCATE and every rewrite of the
-- table change.
concat_ws(' ', to_regclass(%(outbox)s)::oid, pg_relation_filenode(to_regclass(%(outbox)s)))

-- measured --
-- Part of the statements that read records. `fits`: Kafka's client may take a record with this many bytes of key, value
-- and headers. `size`: about what the part that is read takes in memory; a header takes more there than its bytes. The
-- overhead of array_send() is subtracted. The headers are measured once a record (OFFSET 0), and compressed
-- ones are unpacked for it.
CROSS JOIN LATERAL (
    SELECT bytes <= %(most_bytes)s AS fits,
           CASE WHEN bytes <= %(most_bytes)s THEN bytes + 128 * cardinality(kafka_header_keys)
                WHEN octet_length(kafka_key) <= %(most_bytes)s THEN octet_length(kafka_key)
                ELSE 512 END AS size
    FROM (
        SELECT coalesce(octet_length(kafka_key), 0)::bigint + coalesce(octet_length(kafka_value), 0)
               + greatest(0, octet_length(array_send(kafka_header_keys)) - 20 - 4 * cardinality(kafka_header_keys))
               + greatest(0, octet_length(array_send(kafka_header_values)) - 20 - 4 * cardinality(kafka_header_values)) AS bytes
        OFFSET 0
    ) AS counted
) AS measured

-- key --
-- Part of the statements that read records. A key that is too large for Kafka by itself is never published, and not
-- read: a short one stands for it, the parked table's `lane_key`. A key of that very text would only wait in its lane
-- until it is found to be first in its own.
CASE WHEN octet_length(kafka_key) > %(most_bytes)s THEN substr(kafka_key, 1, 100) || md5(kafka_key)::{key_type} ELSE kafka_key END

-- last_drawn --
-- Part of `read_window` and `read_on`: how far the sequence of the ids is, after the snapshot was taken. Ids that come
-- from no sequence all count as drawn.
(SELECT CASE WHEN sequence IS NULL THEN 9223372036854775807 ELSE coalesce(pg_sequence_last_value(sequence), 0) END
 FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence)

-- known_watermark --
-- Part of the statements that look only at what a watermark does not see: the watermark, if it holds here; else one that
-- sees nothing. It does not hold in doubt about the history, nor if it comes from the future, as in another cluster's dump.
CASE WHEN pg_snapshot_xmax(told.watermark) <= pg_snapshot_xmax(pg_current_snapshot()) THEN told.watermark ELSE '1:1:' END

-- lengths --
-- How many records each of these transactions has in the outbox, and the last one's id.
SELECT transaction_id::text::bigint, count(*), max(id)
FROM {outbox}
WHERE transaction_id = ANY(%(transaction_ids)s::text[]::xid8[])
GROUP BY transaction_id

-- flushed --
-- How far Postgres' log is durable.
SELECT ({durable})::bigint

-- flush --
-- Writes a message that nobody reads. This statement's commit makes Postgres' log durable up to here, on its disk and,
-- where commits wait for standbys, on theirs.
SELECT (pg_logical_emit_message(true, 'airflow-outbox', '') - '0/0')::bigint

-- purge_published --
-- Deletes published records, or archives them, if the fence names this view: by exact ids, as far as the snapshot they
-- were read within sees their transactions. Returns whether the fence does, how many records it deleted, how far
-- Postgres' log is on disk, and the age of the record `sample`.
-- Announces the watermark (null: no news) on a channel named after the outbox: the shard, the incarnation, and the
-- snapshot. One too long for a notification is left out; listeners look then.
WITH fence AS MATERIALIZED (
    SELECT shard, outbox_id, incarnation, secret, layout, slots FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox}
    WHERE {those_ids} AND pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot) AND EXISTS (SELECT FROM fence)
    {returned}
) {archived}
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM purged), (pg_current_wal_flush_lsn() - '0/0')::bigint, {age}, (
    SELECT pg_notify({channel}, {announcement})
    FROM fence
    WHERE %(watermark)s::text IS NOT NULL
)

-- announce --
-- The end of `purge_published` alone, where a trigger lets no delete through. Returns whether the fence names this view, and
-- how far Postgres' log is on disk.
WITH fence AS MATERIALIZED (
    SELECT shard, outbox_id, incarnation, secret, layout, slots FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
)
SELECT EXISTS (SELECT FROM fence), (pg_current_wal_flush_lsn() - '0/0')::bigint, (
    SELECT pg_notify({channel}, {announcement})
    FROM fence
    WHERE %(watermark)s::text IS NOT NULL
)

-- kept --
-- The records of these that `purge_published` should have deleted and that are still there.
SELECT id FROM {outbox} WHERE id = ANY(%(ids)s) AND pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot)

-- age --
-- Part of `purge_published` and `purge`: how many seconds ago the transaction began that stashed the record `sample`,
-- which this statement deletes, but still sees (null: it is not there, or its time says nothing). A time in the future
-- counts as now, one of long ago as some hundred years.
(SELECT least(3e9, greatest(0, extract(epoch FROM clock_timestamp() - create_time)))::float8 FROM {outbox} WHERE id = %(sample)s AND isfinite(create_time))

-- ids_one_by_one --
-- Part of `purge_published`: scattered ids.
id = ANY(%(ids)s)

-- ids_between --
-- Part of `purge_published`: ids so close together that their range, without the few others in it, is found sooner.
id BETWEEN %(first)s AND %(last)s AND id <> ALL(%(others)s)

-- is_empty_after_watermark --
-- The same where no record can be of a transaction that all watermarks see: it does not look at those transactions'
-- dead rows.
WITH known AS MATERIALIZED (
    SELECT {known_watermark} AS watermark FROM {published} AS told
)
SELECT NOT EXISTS (
    SELECT FROM {outbox} AS record
    WHERE transaction_id >= (SELECT pg_snapshot_xmax(watermark) FROM known ORDER BY 1 LIMIT 1) AND {unless_undeleted}
) AND NOT EXISTS (
    SELECT FROM {outbox} AS record
    WHERE transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(watermark) FROM known)) AND {unless_undeleted}
)
