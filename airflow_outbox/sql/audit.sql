-- The statements with which an audit reads Postgres. {table}: the table of stashed records; {outbox}: the outbox
-- itself; {parked}: the table of parked records, or the outbox again where there is none; {waiting}: one of these two.
-- {partition}, {transaction}, {time}: a row's values of these, or null where it has no such column.

-- be_patient --
-- The audit's transaction is idle while it reads Kafka, and its statements last as long as the table takes.
SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0

-- look --
-- A transaction's first statement takes its snapshot. It is lent to others under this name while the transaction lasts.
SELECT pg_export_snapshot()

-- borrow --
SET TRANSACTION SNAPSHOT {snapshot}

-- topics --
SELECT kafka_topic FROM {table} UNION SELECT kafka_topic FROM {outbox} UNION SELECT kafka_topic FROM {parked} ORDER BY kafka_topic

-- asks_for_partitions --
-- {any}: one of the tables.
SELECT EXISTS (SELECT FROM {any} WHERE kafka_partition IS NOT NULL)

-- range --
-- The lowest and the highest id of records that were stashed, still wait or are parked.
SELECT least((SELECT min(id) FROM {table}), (SELECT min(id) FROM {outbox}), (SELECT min(id) FROM {parked})),
       greatest((SELECT max(id) FROM {table}), (SELECT max(id) FROM {outbox}), (SELECT max(id) FROM {parked}))

-- stashed --
-- The stashed records with ids between the bounds, and whether each still waits in the outbox or is parked. One that is
-- published and can't be deleted waits no more.
SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
       {partition}, ({transaction})::text::bigint, extract(epoch FROM {time})::float8,
       EXISTS (SELECT FROM {outbox} AS waiting WHERE waiting.id = record.id)
       AND NOT EXISTS (SELECT FROM {undeleted} AS undeleted WHERE undeleted.id = record.id AND published)
       OR EXISTS (SELECT FROM {parked} AS parked WHERE parked.id = record.id)
FROM {table} AS record
WHERE kafka_topic = ANY(%(topics)s) AND id BETWEEN %(first)s AND %(last)s

-- waiting --
-- Records that wait in the outbox, or are parked, and are not in the table yet, as when purging fills that one.
SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
       {partition}, ({transaction})::text::bigint, extract(epoch FROM {time})::float8, true
FROM {waiting} AS waiting
WHERE kafka_topic = ANY(%(topics)s) AND id BETWEEN %(first)s AND %(last)s
      AND NOT EXISTS (SELECT FROM {table} AS record WHERE record.id = waiting.id)

-- named --
-- The topic, the key and the slot of rows, for people.
SELECT id, kafka_topic, kafka_key, {slot} FROM {table} WHERE id = ANY(%(ids)s)
