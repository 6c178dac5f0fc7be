-- Every statement about parked records. {parked}: the table; {columns}: the outbox's columns that a parked record
-- keeps; {own}: a shard among several goes by the records of its own slots; {shard_now}: which of several it is, for
-- people. A statement that changes anything on the leader's behalf locks the fence row (FOR SHARE) and does nothing
-- unless that names this view. Statements that change waiting records, also those of operators, lock them in the order
-- of their numbers: one may wait for another, but none for each other. A lane is told by its topic and `lane_key`, which
-- is short: no index takes a large key, and comparing many large ones takes long.

-- records --
-- How many records wait in each topic, the fewest first.
SELECT kafka_topic, count(*) FROM {parked} WHERE discarded_at IS NULL {own} GROUP BY kafka_topic ORDER BY count(*), kafka_topic

-- lanes --
-- How many records wait in each lane of these topics whose key is in the index whole, or null.
SELECT kafka_topic, lane_key, count(*)
FROM {parked}
WHERE discarded_at IS NULL AND kafka_topic = ANY(%(topics)s) AND (octet_length(lane_key) <= 100 OR lane_key IS NULL) {own}
GROUP BY kafka_topic, lane_key

-- large_lanes --
-- And in each of the others. The key is that of one of the records.
SELECT kafka_topic, {key}, records
FROM (
    SELECT min(number) AS number, count(*) AS records
    FROM {parked}
    WHERE discarded_at IS NULL AND kafka_topic = ANY(%(topics)s) AND octet_length(lane_key) > 100 {own}
    GROUP BY kafka_topic, lane_key
) AS first JOIN {parked} USING (number)

-- key --
-- Part of the statements that read records, or lanes: a key that is too large for Kafka by itself is not read, as in
-- windows.sql.
CASE WHEN octet_length(kafka_key) > %(most_bytes)s THEN lane_key ELSE kafka_key END

-- waiting_lanes --
-- The places of the lanes in which records wait, but for those that are leaving. A key that was too large to be read is
-- given as its short one. The limits keep Postgres from reading all parked records to join them.
SELECT place
FROM unnest(%(topics)s::text[], %(keys)s::{lane_type}[]) WITH ORDINALITY AS lane (topic, key, place)
CROSS JOIN LATERAL (
    (
        SELECT FROM {parked}
        WHERE kafka_topic = topic AND lane_key = key AND discarded_at IS NULL AND number <> ALL(%(leaving)s::bigint[])
        LIMIT 1
    ) UNION ALL (
        SELECT FROM {parked}
        WHERE octet_length(key) > 100 AND kafka_topic = topic AND lane_key = substr(key, 1, 100) || md5(key)::{lane_type}
          AND discarded_at IS NULL AND number <> ALL(%(leaving)s::bigint[])
        LIMIT 1
    ) UNION ALL (
        SELECT FROM {parked}
        WHERE key IS NULL AND kafka_topic = topic AND lane_key IS NULL AND discarded_at IS NULL AND number <> ALL(%(leaving)s::bigint[])
        LIMIT 1
    )
    LIMIT 1
) AS waiting

-- topics --
-- The topics that are parked whole: a record was refused because of its topic. In each of several shards one record
-- stands for its topic there.
SELECT DISTINCT kafka_topic FROM {parked} WHERE discarded_at IS NULL AND cause IS NOT NULL AND cause = ANY(%(causes)s) {own}

-- park --
-- Moves records out of the outbox, by exact ids, if the view may move them. Returns whether the fence names this view,
-- how many records it deleted, and how many of these it did not park. One that is undeleted was parked before.
WITH fence AS MATERIALIZED (
    SELECT incarnation FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), moved AS (
    DELETE FROM {outbox} AS record
    WHERE id = ANY(%(ids)s) AND {mine} AND {unless_undeleted} AND EXISTS (SELECT FROM fence)
    RETURNING *
), parked AS (
    INSERT INTO {parked} ({columns}, incarnation, cause, reason, retry_at)
    SELECT {columns}, incarnation, why.cause, why.reason, clock_timestamp() + why.delay * interval '1 second'
    FROM moved
    JOIN unnest(%(ids)s::bigint[], %(why)s::text[], %(reasons)s::text[], %(delays)s::float8[]) AS why (id, cause, reason, delay)
        USING (id)
    CROSS JOIN fence
    ORDER BY id
    RETURNING true
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM moved), (SELECT count(*) FROM moved) - (SELECT count(*) FROM parked)

-- park_copies --
-- Parks copies of records that Postgres would not delete, and notes these, if the fence names this view. One that is noted
-- already was parked. Returns what `park` returns.
WITH fence AS MATERIALIZED (
    SELECT incarnation FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), noted AS (
    INSERT INTO {undeleted} AS known (id, create_time, shard, published, reason)
    SELECT id, create_time, %(shard)s, false, %(held)s
    FROM {outbox}
    WHERE id = ANY(%(ids)s) AND {mine} AND EXISTS (SELECT FROM fence)
    ON CONFLICT (id) DO UPDATE
    SET create_time = excluded.create_time, shard = excluded.shard, published = false, reason = excluded.reason, tried_at = clock_timestamp()
    WHERE known.create_time <> excluded.create_time
    RETURNING id
), parked AS (
    INSERT INTO {parked} ({columns}, incarnation, cause, reason, retry_at)
    SELECT {columns}, incarnation, why.cause, why.reason, clock_timestamp() + why.delay * interval '1 second'
    FROM {outbox} JOIN noted USING (id)
    JOIN unnest(%(ids)s::bigint[], %(why)s::text[], %(reasons)s::text[], %(delays)s::float8[]) AS why (id, cause, reason, delay)
        USING (id)
    CROSS JOIN fence
    ORDER BY id
    RETURNING true
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM noted), (SELECT count(*) FROM noted) - (SELECT count(*) FROM parked)

-- held --
-- The records of these that `park` should have deleted and that are still there, and that are not parked either.
SELECT id FROM {outbox} AS record WHERE id = ANY(%(ids)s) AND {mine} AND {unless_undeleted}

-- visible --
-- Part of the statements about records that go, exactly once.
pg_visible_in_snapshot(transaction_id, %(snapshot)s::pg_snapshot)

-- marked --
-- Part of the statements about records that go, at least once.
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
-- without a key have their own branch, since USING joins no nulls. So have the three ways to be due, each of which an
-- index finds: otherwise, all of a million parked records would be read each second.
WITH asked AS MATERIALIZED (
    (
        SELECT kafka_topic, lane_key, coalesce(cause = ANY(%(causes)s), false) AS of_the_topic
        FROM {parked}
        WHERE discarded_at IS NULL AND requested = 'retry' {own}
        LIMIT %(max_records)s
    ) UNION (
        SELECT kafka_topic, lane_key, coalesce(cause = ANY(%(causes)s), false)
        FROM {parked}
        WHERE discarded_at IS NULL AND retry_at <= statement_timestamp() {own}
        ORDER BY retry_at
        LIMIT %(max_records)s
    ) UNION (
        SELECT kafka_topic, lane_key, coalesce(cause = ANY(%(causes)s), false)
        FROM {parked}
        WHERE discarded_at IS NULL AND retry_at > statement_timestamp() + %(longest_delay)s * interval '1 second' {own}
        LIMIT %(max_records)s
    )
), refused AS MATERIALIZED (
    SELECT kafka_topic, lane_key, min(number) AS first
    FROM {parked}
    WHERE discarded_at IS NULL AND cause IS NOT NULL AND cause <> ALL(%(causes)s)
      AND kafka_topic IN (SELECT kafka_topic FROM asked WHERE of_the_topic) {own}
    GROUP BY kafka_topic, lane_key
), chosen AS (
    (
        SELECT number FROM {parked} JOIN (SELECT DISTINCT kafka_topic, lane_key FROM asked) AS lane USING (kafka_topic, lane_key)
        WHERE discarded_at IS NULL ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number FROM {parked} JOIN (SELECT DISTINCT kafka_topic FROM asked WHERE lane_key IS NULL) AS keyless USING (kafka_topic)
        WHERE discarded_at IS NULL AND lane_key IS NULL ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number
        FROM (SELECT DISTINCT kafka_topic FROM asked WHERE of_the_topic) AS topic CROSS JOIN LATERAL (
            SELECT number
            FROM {parked} AS record
                LEFT JOIN refused AS lane USING (kafka_topic, lane_key)
                LEFT JOIN refused AS keyless
                    ON keyless.kafka_topic = record.kafka_topic AND keyless.lane_key IS NULL AND record.lane_key IS NULL
            WHERE record.kafka_topic = topic.kafka_topic AND discarded_at IS NULL
              AND (lane.first IS NULL OR number < lane.first) AND (keyless.first IS NULL OR number < keyless.first) {own_record}
            ORDER BY number LIMIT %(max_records)s
        ) AS first
        ORDER BY number LIMIT %(max_records)s
    ) UNION (
        SELECT number FROM {parked}
        WHERE discarded_at IS NULL AND %(of_all_lanes)s AND EXISTS (SELECT FROM asked) ORDER BY number LIMIT %(max_records)s
    )
)
SELECT number, kafka_topic, {key}, CASE WHEN fits THEN kafka_value END, CASE WHEN fits THEN kafka_header_keys END,
       CASE WHEN fits THEN kafka_header_values END, {partition}, size, {transaction_id}, pg_current_snapshot()::text
FROM (
    SELECT *, sum(size) OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (SELECT number AS place FROM chosen ORDER BY number LIMIT %(max_records)s) AS first
        CROSS JOIN LATERAL (SELECT * FROM {parked} WHERE number = place OFFSET 0) AS parked {measured}
) AS due
WHERE coalesce(bytes_before, 0) < %(max_bytes)s
ORDER BY number

-- in_part --
-- The transactions with a part here, discarded or not, and the rest in the outbox: they are being parked. Transaction
-- ids of another history say nothing.
SELECT DISTINCT transaction_id::text::bigint
FROM {parked} AS part
WHERE incarnation = (SELECT incarnation FROM {shard} WHERE shard = %(shard)s)
  AND EXISTS (SELECT FROM {outbox} AS record WHERE record.transaction_id = part.transaction_id AND {unless_undeleted})

-- lengths --
-- How many records of each of these transactions wait, or are still in the outbox, so that one being parked is not
-- taken for whole; and the last parked one's number. Only retryable transactions: none of their records waits for a
-- manual retry, or somebody has asked for a retry of any records, which may wait behind it.
SELECT transaction_id::text::bigint,
       count(*) + (SELECT count(*) FROM {outbox} AS record WHERE record.transaction_id = part.transaction_id AND {unless_undeleted}),
       max(number)
FROM {parked} AS part
WHERE discarded_at IS NULL AND transaction_id = ANY(%(transaction_ids)s::text[]::xid8[])
GROUP BY transaction_id
HAVING bool_and(cause IS NULL OR cause = ANY(%(passing)s))
    OR EXISTS (SELECT FROM {parked} WHERE discarded_at IS NULL AND requested = 'retry')

-- unpark --
-- Deletes published parked records, and archives them, where that is wanted. Returns whether the fence names this view, and
-- how many records it deleted.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), locked AS MATERIALIZED (
    SELECT number FROM {parked} WHERE number = ANY(%(numbers)s) AND EXISTS (SELECT FROM fence) ORDER BY number FOR UPDATE
), purged AS (
    DELETE FROM {parked} WHERE number = ANY(%(numbers)s) AND (SELECT count(*) FROM locked) > 0 RETURNING *
) {archived}
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM purged)

-- kept --
-- Whether one of these records is still there, although `unpark` should have deleted it.
SELECT EXISTS (SELECT FROM {parked} WHERE number = ANY(%(numbers)s))

-- release --
-- Makes due the records that nothing holds any more: the first ones of lanes, unless they were refused themselves or a
-- refused one stands for their topic. At most this many at a time; returns how many. The index alone finds the lanes'
-- heads; the free ones among them are locked in their order.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), heads AS (
    SELECT DISTINCT ON (kafka_topic, lane_key) number, kafka_topic
    FROM {parked}
    WHERE discarded_at IS NULL {own}
    ORDER BY kafka_topic, lane_key, number
), locked AS MATERIALIZED (
    SELECT number FROM {parked}
    WHERE number IN (
        SELECT number FROM heads JOIN {parked} AS head USING (number)
        WHERE cause IS NULL AND retry_at IS NULL AND NOT EXISTS (
            SELECT FROM {parked} AS standing
            WHERE standing.kafka_topic = heads.kafka_topic AND standing.discarded_at IS NULL
              AND standing.cause IS NOT NULL AND standing.cause = ANY(%(causes)s) {own_standing}
        )
        LIMIT %(max_records)s
    ) AND discarded_at IS NULL AND cause IS NULL AND retry_at IS NULL AND EXISTS (SELECT FROM fence)
    ORDER BY number
    FOR UPDATE
), released AS (
    UPDATE {parked} AS parked SET retry_at = clock_timestamp() FROM locked WHERE parked.number = locked.number
    RETURNING true
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM released)

-- note_refusals --
-- Notes why parked records were refused again, and when to try again (a null delay: when somebody asks). For others
-- tried with them this answers a retry that was asked for, or due: they wait for the refused ones. Their cause is
-- cleared if it can pass, or another record stands for it: it is found again, or not. The same holds for everything
-- behind a refused record in its lane, or in its topic where the cause is the topic's, also for records that were too
-- many to be tried with it: otherwise they would have it tried for ever. `most` of each kind are answered at a time: the
-- rest has it tried once more, and is answered then. A request that `tried_in`, the snapshot in which they were read,
-- does not see is not answered: somebody may have corrected the record before asking. A copy of the table may have
-- transaction ids that no snapshot sees, so requests count as new for an hour.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), heads AS MATERIALIZED (
    SELECT kafka_topic, lane_key, number, coalesce(why.cause = ANY(%(causes)s), false) AS of_the_topic
    FROM unnest(%(ids)s::bigint[], %(why)s::text[]) AS why (number, cause) JOIN {parked} USING (number)
), behind AS MATERIALIZED (
    (
        SELECT unnest(%(others)s::bigint[]) AS number
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, lane_key, min(number) AS first FROM heads GROUP BY kafka_topic, lane_key) AS lane
            USING (kafka_topic, lane_key)
        WHERE discarded_at IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL)
        LIMIT %(most)s
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, min(number) AS first FROM heads WHERE lane_key IS NULL GROUP BY kafka_topic) AS keyless
            USING (kafka_topic)
        WHERE discarded_at IS NULL AND lane_key IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL)
        LIMIT %(most)s
    ) UNION (
        SELECT number
        FROM {parked} JOIN (SELECT kafka_topic, min(number) AS first FROM heads WHERE of_the_topic GROUP BY kafka_topic) AS topic
            USING (kafka_topic)
        WHERE discarded_at IS NULL AND number > first AND (requested = 'retry' OR retry_at IS NOT NULL) {own}
        LIMIT %(most)s
    ) EXCEPT (
        SELECT number FROM heads
    )
), locked AS MATERIALIZED (
    SELECT number
    FROM {parked} AS parked JOIN (SELECT number FROM heads UNION SELECT number FROM behind) AS meant USING (number)
    WHERE EXISTS (SELECT FROM fence)
    ORDER BY number
    FOR UPDATE OF parked
), refused AS (
    UPDATE {parked} AS parked
    SET cause = why.cause, reason = why.reason, attempts = attempts + 1, last_attempt_at = clock_timestamp(),
        requested = CASE WHEN NOT pg_visible_in_snapshot(requested_in, %(tried_in)s::pg_snapshot) AND abs(extract(epoch FROM clock_timestamp() - requested_at)) < 3600
            THEN requested ELSE nullif(requested, 'retry')
        END,
        retry_at = CASE WHEN why.delay IS NOT NULL THEN  -- least() passes over nulls
            clock_timestamp() + least(why.delay * 2 ^ least(attempts, 30), %(longest_delay)s) * interval '1 second'
        END
    FROM unnest(%(ids)s::bigint[], %(why)s::text[], %(reasons)s::text[], %(delays)s::float8[]) AS why (number, cause, reason, delay)
    WHERE parked.number = why.number AND parked.number IN (SELECT number FROM locked)
), answered AS (
    UPDATE {parked}
    SET requested = nullif(requested, 'retry'), retry_at = NULL,
        cause = CASE WHEN cause <> ALL(%(passing)s) THEN cause END, reason = CASE WHEN cause <> ALL(%(passing)s) THEN reason END
    WHERE number IN (SELECT number FROM behind JOIN locked USING (number)) AND (requested = 'retry' OR retry_at IS NOT NULL)
      AND (requested = 'retry' AND NOT pg_visible_in_snapshot(requested_in, %(tried_in)s::pg_snapshot) AND abs(extract(epoch FROM clock_timestamp() - requested_at)) < 3600) IS NOT TRUE
)
SELECT EXISTS (SELECT FROM fence)

-- discard_requested --
-- Takes records out of their lanes that operators have asked to discard, at most this many. They stay in the table. Returns
-- the lanes.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), chosen AS MATERIALIZED (
    SELECT number FROM {parked} WHERE discarded_at IS NULL AND requested = 'discard' AND EXISTS (SELECT FROM fence) {own}
    LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT number FROM {parked} AS parked JOIN chosen USING (number)
    WHERE parked.discarded_at IS NULL AND parked.requested = 'discard'
    ORDER BY number
    FOR UPDATE OF parked
), discarded AS (
    UPDATE {parked} AS parked SET discarded_at = clock_timestamp(), retry_at = NULL
    FROM locked
    WHERE parked.number = locked.number
    RETURNING kafka_topic, {key}
)
SELECT discarded.* FROM discarded WHERE EXISTS (SELECT FROM fence)

-- portions --
-- The last number of each portion of the records that are meant. The two statements that follow change a portion each:
-- the leader waits for what they have locked.
SELECT number
FROM (SELECT number, row_number() OVER (ORDER BY number) AS place, count(*) OVER () AS records FROM {parked} WHERE {standing} AND {chosen}) AS meant
WHERE mod(place, %(most)s) = 0 OR place = records
ORDER BY number

-- ask --
-- Asks the leader to retry or discard a portion of records, and notes that in the trail. A trigger enters the asker and
-- the time. They and the reason stay with a discarded record. Returns how many records are meant.
WITH meant AS MATERIALIZED (
    SELECT number FROM {parked}
    WHERE {standing} AND {chosen} AND number > %(after)s AND number <= %(last)s
    ORDER BY number
    FOR UPDATE
), asked AS (
    UPDATE {parked} AS parked
    SET requested = %(request)s, request_reason = %(reason)s
    FROM meant
    WHERE parked.number = meant.number
    RETURNING true
), noted AS (
    {noted}
)
SELECT count(*) FROM asked

-- forget --
-- Empties a portion of discarded records, keeps what was discarded when, why and by whom, and notes in the trail who
-- emptied how many. An empty slice is an empty array of whatever type.
WITH asked AS (
    UPDATE {parked}
    SET kafka_value = NULL, kafka_header_keys = kafka_header_keys[1:0], kafka_header_values = kafka_header_values[1:0],
        purged_at = clock_timestamp()
    WHERE {standing} AND purged_at IS NULL AND {chosen} AND number > %(after)s AND number <= %(last)s
    RETURNING true
), noted AS (
    {noted}
)
SELECT count(*) FROM asked

-- waiting --
-- The parts from here on say which records are meant.
discarded_at IS NULL

-- discarded --
discarded_at IS NOT NULL

-- any --
true

-- of_topic --
-- Not by `=`: Postgres would take the order within the topic for that of the whole table, and read that.
kafka_topic BETWEEN %(topic)s::text AND %(topic)s::text

-- of_key --
-- The index has short keys, which schema.sql makes in the same way.
kafka_key = %(key)s::{key_type} AND lane_key = CASE WHEN octet_length(%(key)s::{key_type}) <= 100 THEN %(key)s::{key_type}
    ELSE substr(%(key)s::{key_type}, 1, 100) || md5(%(key)s::{key_type})::{lane_type} END

-- of_key_and_topic --
-- By `=`, since the index has the topic before the key.
kafka_topic = %(topic)s::text AND {of_key}

-- of_key_in_any_topic --
kafka_topic = ANY (ARRAY({topics_waiting})) AND {of_key}

-- of_ids --
id = ANY(%(ids)s::bigint[])

-- of_numbers --
number = ANY(%(numbers)s::bigint[])

-- of_cause --
cause = %(cause)s::text

-- with_cause --
cause IS NOT NULL

-- without_cause --
cause IS NULL

-- up_to --
number <= %(up_to)s

-- topics_waiting --
-- The topics of waiting records, in order. Each step finds the next one in the index, however many records there are.
WITH RECURSIVE topic (name) AS (
    (SELECT kafka_topic FROM {parked} WHERE discarded_at IS NULL ORDER BY kafka_topic LIMIT 1)
    UNION ALL
    SELECT (SELECT kafka_topic FROM {parked} WHERE discarded_at IS NULL AND kafka_topic > name ORDER BY kafka_topic LIMIT 1)
    FROM topic WHERE name IS NOT NULL
)
SELECT name FROM topic WHERE name IS NOT NULL LIMIT %(most_topics)s

-- list --
-- Parked records without their contents, in order: those that wait, or those that were discarded.
SELECT id, kafka_topic AS topic, kafka_key AS key, {shard_now} AS shard, {transaction_id} AS transaction_id, cause, reason, attempts, create_time, parked_at,
       last_attempt_at, retry_at, requested, requested_by, requested_at, request_reason, discarded_at, purged_at
FROM {parked}
WHERE {standing} AND {chosen}
ORDER BY number
LIMIT %(limit)s

-- page --
-- A page of them, each with the beginning of its key. An index has them in the page's order.
SELECT number, id, kafka_topic AS topic, substr(kafka_key, 1, %(most_key)s) AS key, octet_length(kafka_key) AS key_size, {shard_now} AS shard, cause, reason,
       attempts, parked_at, retry_at, requested, discarded_at
FROM {parked}
WHERE {standing} AND {chosen} AND {after}
ORDER BY {order}
LIMIT %(limit)s

-- by_topic --
kafka_topic, number

-- by_cause --
cause, kafka_topic, number

-- after_in_topic --
(kafka_topic, number) > (%(after_topic)s::text, %(after_number)s::bigint)

-- after_in_cause --
(cause, kafka_topic, number) > (%(after_cause)s::text, %(after_topic)s::text, %(after_number)s::bigint)

-- count --
-- How many there are, counted up to a bound, and the last number of all. A record that is parked later has a higher one.
SELECT (SELECT count(*) FROM (SELECT FROM {parked} WHERE {standing} AND {chosen} LIMIT %(most)s) AS counted),
       (SELECT coalesce(max(number), 0) FROM {parked})

-- show --
-- Parked records whole, waiting and discarded ones, in order.
SELECT id, kafka_topic AS topic, kafka_key AS key, kafka_value AS value, kafka_header_keys AS header_names,
       kafka_header_values AS header_values, {partition} AS partition, {shard_now} AS shard, {transaction_id} AS transaction_id, cause, reason, attempts,
       create_time, parked_at, last_attempt_at, retry_at, requested, requested_by, requested_at, request_reason, discarded_at, purged_at
FROM {parked}
WHERE {chosen}
ORDER BY number
LIMIT %(limit)s

-- record --
-- One record with the beginnings of key, value and headers and their sizes in bytes, and for whom its last request was
-- made. Transaction ids of another history may be the same, but not at the same time.
SELECT number, id, kafka_topic AS topic, substr(kafka_key, 1, %(most)s) AS key, octet_length(kafka_key) AS key_size,
       substr(kafka_value, 1, %(most)s) AS value, octet_length(kafka_value) AS value_size,
       ARRAY(SELECT substr(name, 1, %(most_header)s) FROM unnest(kafka_header_keys[1:%(most_headers)s]) AS name) AS header_names,
       ARRAY(SELECT substr(content, 1, %(most_header)s) FROM unnest(kafka_header_values[1:%(most_headers)s]) AS content) AS header_values,
       cardinality(kafka_header_keys) AS headers, {partition} AS partition, {shard_now} AS shard, {transaction_id} AS transaction_id, cause, parked.reason, attempts,
       create_time, parked_at, last_attempt_at, retry_at, requested, requested_by, requested_at, request_reason, discarded_at, purged_at,
       asked.action AS last_request, asked.on_behalf_of AS requested_on_behalf_of
FROM {parked} AS parked
LEFT JOIN LATERAL (
    SELECT action, on_behalf_of FROM {trail} AS trail
    WHERE trail.transaction_id = requested_in AND asked_by = requested_by AND abs(extract(epoch FROM asked_at - requested_at)) < 3600
    LIMIT 1
) AS asked ON true
WHERE number = %(number)s

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
