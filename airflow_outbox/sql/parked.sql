-- Every statement about parked records. {parked}: the table; {columns}: the outbox's columns that a parked record
-- keeps. A statement that changes anything on the leader's behalf locks the fence row (FOR SHARE) and does nothing
-- unless that names this view.

-- lanes --
-- How many records wait in each lane.
SELECT kafka_topic, kafka_key, count(*) FROM {parked} WHERE discarded_at IS NULL GROUP BY kafka_topic, kafka_key

-- topics --
-- The topics that are parked whole: a record was refused because of its topic.
SELECT DISTINCT kafka_topic FROM {parked} WHERE discarded_at IS NULL AND cause IS NOT NULL AND cause = ANY(%(causes)s)

-- park --
-- Moves records out of the outbox, by exact ids, if the view may move them. Returns whether the fence names this view.
WITH fence AS MATERIALIZED (
    SELECT incarnation FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), moved AS (
    DELETE FROM {outbox}
    WHERE id = ANY(%(ids)s) AND {mine} AND EXISTS (SELECT FROM fence)
    RETURNING *
), parked AS (
    INSERT INTO {parked} ({columns}, incarnation, cause, reason, retry_at)
    SELECT {columns}, incarnation, why.cause, why.reason, clock_timestamp() + why.delay * interval '1 second'
    FROM moved
    JOIN unnest(%(ids)s::bigint[], %(why)s::text[], %(reasons)s::text[], %(delays)s::float8[]) AS why (id, cause, reason, delay)
        USING (id)
    CROSS JOIN fence
    ORDER BY id
)
SELECT EXISTS (SELECT FROM fence)

-- visible --
-- Part of `park`, exactly once.
pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot)

-- marked --
-- Part of `park`, at least once.
leader_id = %(view)s

-- due --
-- Records to publish now:
-- - of lanes in which one is to be tried, from the lane's first one on
-- - of the topic, when one to be tried stands for its whole topic: in each lane up to the first record that has a cause
--   of its own. That one waits for its own retry, and must not take up others' room.
-- - of all lanes, if that is wanted and any is to be tried
-- Rows are as when the outbox is read, with the number in the parked table in place of the id, and no more than it
-- takes to reach max_bytes. A time further ahead than any delay counts as now: a clock was set back since. Joins are
-- used, since Postgres compares each row with each one asked for where it takes a subquery in an OR for large. Records
-- without a key have their own branch, since USING joins no nulls.
WITH asked AS MATERIALIZED (
    SELECT kafka_topic, kafka_key, coalesce(cause = ANY(%(causes)s), false) AS of_the_topic
    FROM {parked}
    WHERE discarded_at IS NULL AND (
        requested = 'retry' OR retry_at <= clock_timestamp() OR retry_at > clock_timestamp() + %(longest_delay)s * interval '1 second')
    ORDER BY number
    LIMIT %(max_records)s
), refused AS MATERIALIZED (
    SELECT kafka_topic, kafka_key, min(number) AS first
    FROM {parked}
    WHERE discarded_at IS NULL AND cause IS NOT NULL AND cause <> ALL(%(causes)s)
      AND kafka_topic IN (SELECT kafka_topic FROM asked WHERE of_the_topic)
    GROUP BY kafka_topic, kafka_key
), chosen AS (
    (
        SELECT number FROM {parked} JOIN (SELECT DISTINCT kafka_topic, kafka_key FROM asked) AS lane USING (kafka_topic, kafka_key)
        WHERE discarded_at IS NULL ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number FROM {parked} JOIN (SELECT DISTINCT kafka_topic FROM asked WHERE kafka_key IS NULL) AS keyless USING (kafka_topic)
        WHERE discarded_at IS NULL AND kafka_key IS NULL ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number
        FROM {parked} AS record
            JOIN (SELECT DISTINCT kafka_topic FROM asked WHERE of_the_topic) AS topic USING (kafka_topic)
            LEFT JOIN refused AS lane USING (kafka_topic, kafka_key)
            LEFT JOIN refused AS keyless
                ON keyless.kafka_topic = record.kafka_topic AND keyless.kafka_key IS NULL AND record.kafka_key IS NULL
        WHERE discarded_at IS NULL AND (lane.first IS NULL OR number < lane.first) AND (keyless.first IS NULL OR number < keyless.first)
        ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number FROM {parked}
        WHERE discarded_at IS NULL AND %(of_all_lanes)s AND EXISTS (SELECT FROM asked) ORDER BY number LIMIT %(max_records)s
    )
)
SELECT number, kafka_topic, kafka_key, CASE WHEN fits THEN kafka_value END, CASE WHEN fits THEN kafka_header_keys END,
       CASE WHEN fits THEN kafka_header_values END, {partition}, size, {transaction_id}
FROM (
    SELECT *, sum(size) OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (SELECT number FROM chosen ORDER BY number LIMIT %(max_records)s) AS first JOIN {parked} AS parked USING (number) {measured}
) AS due
WHERE coalesce(bytes_before, 0) < %(max_bytes)s
ORDER BY number

-- in_part --
-- The transactions with a part here, discarded or not, and the rest in the outbox: they are being parked. Transaction
-- ids of another history say nothing.
SELECT DISTINCT transaction_id::text::bigint
FROM {parked} AS part
WHERE incarnation = (SELECT incarnation FROM {shard} WHERE shard = %(shard)s)
  AND EXISTS (SELECT FROM {outbox} AS rest WHERE rest.transaction_id = part.transaction_id)

-- lengths --
-- How many records of each of these transactions wait, or are still in the outbox, so that one being parked is not
-- taken for whole; and the last parked one's number. Only retryable transactions: none of their records waits for a
-- manual retry, or somebody has asked for a retry of any records, which may wait behind it.
SELECT transaction_id::text::bigint,
       count(*) + (SELECT count(*) FROM {outbox} AS rest WHERE rest.transaction_id = part.transaction_id),
       max(number)
FROM {parked} AS part
WHERE discarded_at IS NULL AND transaction_id = ANY(%(transaction_ids)s::text[]::xid8[])
GROUP BY transaction_id
HAVING bool_and(cause IS NULL OR cause = ANY(%(passing)s))
    OR EXISTS (SELECT FROM {parked} WHERE discarded_at IS NULL AND requested = 'retry')

-- unpark --
-- Deletes published parked records, and archives them, where that is wanted.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {parked} WHERE number = ANY(%(numbers)s) AND EXISTS (SELECT FROM fence) RETURNING *
) {archived}
SELECT EXISTS (SELECT FROM fence)

-- release --
-- Makes due the records that nothing holds any more: the first ones of lanes, unless they were refused themselves or a
-- refused one stands for their topic. At most so many at a time; returns how many. Two steps, so that the index alone
-- finds the lanes' heads.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), heads AS (
    SELECT DISTINCT ON (kafka_topic, kafka_key) number, kafka_topic
    FROM {parked}
    WHERE discarded_at IS NULL
    ORDER BY kafka_topic, kafka_key, number
), released AS (
    UPDATE {parked} SET retry_at = clock_timestamp()
    WHERE number IN (
        SELECT number FROM heads JOIN {parked} AS head USING (number)
        WHERE cause IS NULL AND retry_at IS NULL AND NOT EXISTS (
            SELECT FROM {parked} AS standing
            WHERE standing.kafka_topic = heads.kafka_topic AND standing.discarded_at IS NULL
              AND standing.cause IS NOT NULL AND standing.cause = ANY(%(causes)s)
        )
        LIMIT %(max_records)s
    ) AND EXISTS (SELECT FROM fence)
    RETURNING number
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM released)

-- note_refusals --
-- Notes why parked records were refused again, and when to try again (a null delay: when somebody asks). For others
-- tried with them this answers a retry that was asked for, or due: they wait for the refused ones. Their cause is
-- cleared if it can pass, or another record stands for it: it is found again, or not. The same holds for everything
-- behind a refused record in its lane, or in its topic where the cause is the topic's, also for records that were too
-- many to be tried with it: otherwise they would have it tried for ever.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), refused AS (
    UPDATE {parked} AS parked
    SET cause = why.cause, reason = why.reason, requested = nullif(requested, 'retry'), attempts = attempts + 1, last_attempt_at = clock_timestamp(),
        retry_at = CASE WHEN why.delay IS NOT NULL THEN  -- least() passes over nulls
            clock_timestamp() + least(why.delay * 2 ^ least(attempts, 30), %(longest_delay)s) * interval '1 second'
        END
    FROM unnest(%(ids)s::bigint[], %(why)s::text[], %(reasons)s::text[], %(delays)s::float8[]) AS why (number, cause, reason, delay)
    WHERE parked.number = why.number AND EXISTS (SELECT FROM fence)
), heads AS MATERIALIZED (
    SELECT kafka_topic, kafka_key, number, coalesce(why.cause = ANY(%(causes)s), false) AS of_the_topic
    FROM unnest(%(ids)s::bigint[], %(why)s::text[]) AS why (number, cause) JOIN {parked} USING (number)
), behind AS (
    (
        SELECT unnest(%(others)s::bigint[]) AS number
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, kafka_key, min(number) AS first FROM heads GROUP BY kafka_topic, kafka_key) AS lane
            USING (kafka_topic, kafka_key)
        WHERE discarded_at IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL)
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, min(number) AS first FROM heads WHERE kafka_key IS NULL GROUP BY kafka_topic) AS keyless
            USING (kafka_topic)
        WHERE discarded_at IS NULL AND kafka_key IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL)
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, min(number) AS first FROM heads WHERE of_the_topic GROUP BY kafka_topic) AS topic
            USING (kafka_topic)
        WHERE discarded_at IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL)
    ) EXCEPT (
        SELECT number FROM heads
    )
), answered AS (
    UPDATE {parked}
    SET requested = nullif(requested, 'retry'), retry_at = NULL,
        cause = CASE WHEN cause <> ALL(%(passing)s) THEN cause END, reason = CASE WHEN cause <> ALL(%(passing)s) THEN reason END
    WHERE number IN (SELECT number FROM behind) AND (requested = 'retry' OR retry_at IS NOT NULL) AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- discard_requested --
-- Takes records out of their lanes that operators have asked to discard. They stay in the table.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), discarded AS (
    UPDATE {parked} SET discarded_at = clock_timestamp(), retry_at = NULL
    WHERE discarded_at IS NULL AND requested = 'discard' AND EXISTS (SELECT FROM fence)
    RETURNING kafka_topic, kafka_key
)
SELECT kafka_topic, kafka_key FROM discarded

-- ask --
-- Asks the leader to retry or discard records. A trigger enters the asker and the time. They and the reason stay with a
-- discarded record.
UPDATE {parked}
SET requested = %(request)s, request_reason = %(reason)s
WHERE discarded_at IS NULL AND {chosen}

-- forget --
-- Empties discarded records, and keeps what was discarded when, why and by whom. An empty slice is an empty array of
-- whatever type.
UPDATE {parked}
SET kafka_value = NULL, kafka_header_keys = kafka_header_keys[1:0], kafka_header_values = kafka_header_values[1:0],
    purged_at = clock_timestamp()
WHERE discarded_at IS NOT NULL AND purged_at IS NULL AND {chosen}

-- chosen --
-- Part of operators' commands: which records are meant.
(%(topic)s::text IS NULL OR kafka_topic = %(topic)s::text)
AND (%(key)s::{key_type} IS NULL OR kafka_key = %(key)s::{key_type})
AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))

-- list --
-- Parked records without their contents, in order: those that wait, or those that were discarded.
SELECT id, kafka_topic AS topic, kafka_key AS key, {transaction_id} AS transaction_id, cause, reason, attempts, create_time, parked_at,
       last_attempt_at, retry_at, requested, requested_by, requested_at, request_reason, discarded_at, purged_at
FROM {parked}
WHERE (discarded_at IS NOT NULL) = %(discarded)s AND {chosen}
ORDER BY number
LIMIT %(limit)s

-- show --
-- Parked records whole, waiting and discarded ones, in order.
SELECT id, kafka_topic AS topic, kafka_key AS key, kafka_value AS value, kafka_header_keys AS header_names,
       kafka_header_values AS header_values, {partition} AS partition, {transaction_id} AS transaction_id, cause, reason, attempts,
       create_time, parked_at, last_attempt_at, retry_at, requested, requested_by, requested_at, request_reason, discarded_at, purged_at
FROM {parked}
WHERE {chosen}
ORDER BY number
LIMIT %(limit)s

-- counts --
-- How many records wait, by the cause of their refusal, the commonest first. Null stands for those that wait behind
-- others.
SELECT cause, count(*) FROM {parked} WHERE discarded_at IS NULL GROUP BY cause ORDER BY count(*) DESC, cause

-- refused --
-- How many waiting records were refused themselves, and some of their topics.
SELECT count(*), ARRAY(
    SELECT DISTINCT kafka_topic FROM {parked} WHERE discarded_at IS NULL AND cause IS NOT NULL ORDER BY kafka_topic LIMIT %(topics)s
)
FROM {parked}
WHERE discarded_at IS NULL AND cause IS NOT NULL

-- transactions --
-- How many source transactions have a refused record, and how many wait only because they touch such a transaction's
-- keys.
SELECT count(*) FILTER (WHERE refused), count(*) FILTER (WHERE NOT refused)
FROM (
    SELECT bool_or(cause IS NOT NULL) AS refused FROM {parked} WHERE discarded_at IS NULL GROUP BY transaction_id
) AS waiting
