-- The statements of an audit's comparison. They run in SQLite, in a file that lives as long as the audit: it sorts far
-- more than memory holds. Nothing here is for Postgres. A lane is a topic and a key; `pin` is the partition that a
-- record asked for, or -1; `place` is where a record lies in Kafka, partition and offset in one number; `excuse` says
-- why a row may be absent: 0 not at all, 1 it still waits in the outbox, 2 Kafka may have removed it.

-- bound_memory --
-- The journal would only guard a file that is thrown away. The cache bounds the memory for sorting, too.
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -8192;

-- create --
CREATE TABLE stashed (
    lane INTEGER NOT NULL, pin INTEGER NOT NULL, content INTEGER NOT NULL, id INTEGER NOT NULL, transaction_id INTEGER, excuse INTEGER NOT NULL
);
CREATE TABLE arrived (
    lane INTEGER NOT NULL, pin INTEGER NOT NULL, content INTEGER NOT NULL, place INTEGER NOT NULL, late INTEGER NOT NULL
);
CREATE TABLE doubtful (lane INTEGER PRIMARY KEY);
CREATE TABLE stashed_in_doubt (
    lane INTEGER, pin INTEGER, content INTEGER, id INTEGER, transaction_id INTEGER, excuse INTEGER, PRIMARY KEY (lane, pin, content, id)
) WITHOUT ROWID;
CREATE TABLE arrived_in_doubt (
    lane INTEGER, pin INTEGER, content INTEGER, place INTEGER, late INTEGER, PRIMARY KEY (lane, pin, content, place)
) WITHOUT ROWID;

-- add_stashed --
INSERT INTO stashed (lane, pin, content, id, transaction_id, excuse) VALUES (?, ?, ?, ?, ?, ?)

-- add_arrived --
INSERT INTO arrived (lane, pin, content, place, late) VALUES (?, ?, ?, ?, ?)

-- unpin --
-- For records that came with the partition they lie in: one counts as pinned when a row of its lane and content asks
-- for that partition.
CREATE INDEX stashed_pin ON stashed (lane, pin, content) WHERE pin >= 0;
UPDATE arrived SET pin = -1
WHERE NOT EXISTS (
    SELECT 1 FROM stashed
    WHERE stashed.lane = arrived.lane AND stashed.pin = arrived.pin AND stashed.pin >= 0 AND stashed.content = arrived.content
);

-- stashed_in_order --
SELECT lane, pin, content FROM stashed ORDER BY lane, pin, id

-- arrived_in_order --
SELECT lane, pin, content, place >> 44 FROM arrived ORDER BY lane, pin, place

-- add_doubtful --
INSERT OR IGNORE INTO doubtful (lane) VALUES (?)

-- put_in_doubt --
-- The statements below look only at the lanes that differ, record by record, from what was stashed.
INSERT INTO stashed_in_doubt
SELECT lane, pin, content, id, transaction_id, excuse FROM stashed WHERE lane IN doubtful ORDER BY lane, pin, content, id;
INSERT INTO arrived_in_doubt
SELECT lane, pin, content, place, late FROM arrived WHERE lane IN doubtful ORDER BY lane, pin, content, place;

-- tally --
-- How often each content was stashed and arrived in its lane.
CREATE TABLE tally AS
SELECT lane, pin, content, sum(was_stashed) AS stashed, sum(was_waiting) AS waiting, sum(was_expired) AS expired,
       sum(has_arrived) AS arrived, sum(was_late) AS late, min(id) AS first_id, min(place) AS first_place
FROM (
    SELECT lane, pin, content, 1 AS was_stashed, excuse = 1 AS was_waiting, excuse = 2 AS was_expired,
           0 AS has_arrived, 0 AS was_late, id, NULL AS place
    FROM stashed_in_doubt
    UNION ALL
    SELECT lane, pin, content, 0, 0, 0, 1, late, NULL, place
    FROM arrived_in_doubt
) AS either
GROUP BY lane, pin, content

-- count_all --
SELECT (SELECT count(*) FROM stashed), (SELECT count(*) FROM arrived)

-- count --
-- An excused row that is absent is no fault. A late surplus record may be of a row that nobody has read yet.
SELECT coalesce(sum(max(0, stashed - arrived - waiting - expired)), 0) AS missing,
       coalesce(sum(CASE WHEN stashed > 0 THEN max(0, arrived - stashed - late) END), 0) AS doubled,
       coalesce(sum(CASE WHEN stashed = 0 THEN arrived - late END), 0) AS "foreign",
       coalesce(sum(min(waiting, max(0, stashed - arrived))), 0) AS waiting,
       coalesce(sum(min(expired, max(0, stashed - arrived - waiting))), 0) AS expired,
       coalesce(sum(min(late, max(0, arrived - stashed))), 0) AS later
FROM tally

-- find_absent --
-- The rows of a content that the arrived records don't account for: excused ones first, and else the last ones.
CREATE TABLE absent AS
SELECT id, transaction_id, excuse
FROM (
    SELECT row.id, row.transaction_id, row.excuse, tally.arrived,
           row_number() OVER (PARTITION BY row.lane, row.pin, row.content ORDER BY row.excuse, row.id) AS nth
    FROM tally CROSS JOIN stashed_in_doubt AS row USING (lane, pin, content)
    WHERE tally.stashed > tally.arrived
) AS numbered
WHERE nth > arrived

-- pair --
-- Pairs records with rows wherever that is certain: for a content that was stashed once, the first record; for one that
-- arrived as often as it was stashed, each in its turn. Nobody can tell which of several equal records is missing or
-- doubled.
CREATE TABLE pair AS
SELECT lane, pin, first_id AS id, first_place AS place
FROM tally
WHERE stashed = 1 AND arrived >= 1
UNION ALL
SELECT lane, pin, id, place
FROM (
    SELECT lane, pin, content, id, row_number() OVER (PARTITION BY lane, pin, content ORDER BY id) AS nth
    FROM tally CROSS JOIN stashed_in_doubt USING (lane, pin, content)
    WHERE stashed > 1 AND stashed = arrived
) AS row
JOIN (
    SELECT lane, pin, content, place, row_number() OVER (PARTITION BY lane, pin, content ORDER BY place) AS nth
    FROM tally CROSS JOIN arrived_in_doubt USING (lane, pin, content)
    WHERE stashed > 1 AND stashed = arrived
) AS record USING (lane, pin, content, nth)

-- find_reordered --
-- Records behind one of the same lane and partition that was stashed later; and records in another partition than the
-- one stashed before them, since no consumer sees an order there.
CREATE TABLE reordered AS
SELECT id, min(place) AS place, max(other_id) AS other_id, max(other_place) AS other_place
FROM (
    SELECT id, place, other_id, NULL AS other_place
    FROM (
        SELECT id, place, max(id) OVER (
                   PARTITION BY lane, pin, place >> 44 ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS other_id
        FROM pair
    ) AS followed
    WHERE other_id > id
    UNION ALL
    SELECT id, place, NULL, other_place
    FROM (SELECT id, place, lag(place) OVER (PARTITION BY lane, pin ORDER BY id) AS other_place FROM pair) AS moved
    WHERE other_place >> 44 <> place >> 44
) AS displaced
GROUP BY id

-- count_reordered --
SELECT count(*) FROM reordered

-- find_incomplete --
-- Source transactions that lack a record without an excuse: how many such records, the first of them, and all that they
-- lack.
CREATE TABLE incomplete AS
SELECT transaction_id, sum(excuse = 0) AS missing, min(CASE WHEN excuse = 0 THEN id END) AS first_id, count(*) AS absent
FROM absent
WHERE transaction_id IS NOT NULL
GROUP BY transaction_id
HAVING sum(excuse = 0) > 0;
CREATE UNIQUE INDEX incomplete_transaction ON incomplete (transaction_id);

-- incomplete --
SELECT transaction_id, missing, first_id, absent FROM incomplete

-- find_torn --
-- Incomplete transactions that have some records in Kafka.
CREATE TABLE torn AS
SELECT incomplete.transaction_id, incomplete.missing, incomplete.first_id
FROM incomplete
JOIN (
    SELECT transaction_id, count(*) AS stashed FROM stashed
    WHERE transaction_id IN (SELECT transaction_id FROM incomplete)
    GROUP BY transaction_id
) AS whole USING (transaction_id)
WHERE whole.stashed > incomplete.absent

-- count_torn --
SELECT count(*) FROM torn

-- missing_examples --
SELECT id FROM absent WHERE excuse = 0 ORDER BY id LIMIT ?

-- doubled_examples --
SELECT first_id, place
FROM (
    SELECT tally.first_id, tally.stashed, record.place,
           row_number() OVER (PARTITION BY record.lane, record.pin, record.content ORDER BY record.place) AS nth
    FROM tally CROSS JOIN arrived_in_doubt AS record USING (lane, pin, content)
    WHERE tally.stashed > 0 AND tally.arrived > tally.stashed + tally.late AND record.late = 0
) AS numbered
WHERE nth > stashed
ORDER BY place
LIMIT ?

-- reordered_examples --
SELECT id, place, other_id, other_place FROM reordered ORDER BY id LIMIT ?

-- torn_examples --
SELECT transaction_id, missing, first_id FROM torn ORDER BY transaction_id LIMIT ?

-- foreign_examples --
SELECT record.place
FROM tally CROSS JOIN arrived_in_doubt AS record USING (lane, pin, content)
WHERE tally.stashed = 0 AND record.late = 0
ORDER BY record.place
LIMIT ?
