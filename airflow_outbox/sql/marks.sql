-- At least once: mark, purge and reset records. {outbox}, {shard}: the tables.
-- Each statement locks the fence row, as fence.sql explains.

-- mark --
-- Claims the next records by id, unmarked or marked by another view, and returns them: at most max_records, and no more
-- than it takes to reach max_bytes; only marked ones, when `only_marked`. Nothing comes back when nothing is due or
-- when the fence names another view; `holds_fence` tells which.
WITH due AS MATERIALIZED (
    SELECT id
    FROM (
        SELECT id, sum(size) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM (
            SELECT id, size
            FROM {outbox} AS record {measured}
            WHERE leader_id IS DISTINCT FROM %(view)s AND (leader_id IS NOT NULL OR NOT %(only_marked)s) AND {fresh}
            ORDER BY id
            LIMIT %(max_records)s
        ) AS unmarked
    ) AS running
    WHERE coalesce(bytes_before, 0) < %(max_bytes)s
), fence AS MATERIALIZED (
    SELECT FROM {shard}
    WHERE shard = %(shard)s AND view = %(view)s AND EXISTS (SELECT FROM due)
    FOR SHARE
), marked AS (
    UPDATE {outbox} AS record
    SET leader_id = %(view)s
    FROM due
    WHERE record.id = due.id AND EXISTS (SELECT FROM fence)
    RETURNING record.*
)
SELECT id, kafka_topic, {key}, CASE WHEN fits THEN kafka_value END, CASE WHEN fits THEN kafka_header_keys END,
       CASE WHEN fits THEN kafka_header_values END, {partition}
FROM marked {measured}
ORDER BY id

-- holds_marks --
-- Whether marked records are still there. Harvesting exactly once marks none.
SELECT EXISTS (SELECT FROM {outbox} AS record WHERE leader_id IS NOT NULL AND {unless_undeleted})

-- purge --
-- Deletes published records, or archives them, by exact ids, as long as they carry this view's mark and the fence names
-- this view. Returns whether the fence does, how many records it deleted, and the age of the record `sample`.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), purged AS (
    DELETE FROM {outbox} WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
    {returned}
) {archived}
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM purged), {age}

-- kept --
-- The records of these that `purge` should have deleted and that are still there.
SELECT id FROM {outbox} WHERE id = ANY(%(ids)s) AND leader_id = %(view)s

-- reset --
-- Removes this view's mark from records that could not be published, so that the next mark of any view finds them.
WITH fence AS MATERIALIZED (
    SELECT FROM {shard} WHERE shard = %(shard)s AND view = %(view)s FOR SHARE
), reset AS (
    UPDATE {outbox} SET leader_id = NULL WHERE id = ANY(%(ids)s) AND leader_id = %(view)s AND EXISTS (SELECT FROM fence)
)
SELECT EXISTS (SELECT FROM fence)

-- is_empty --
-- Whether every committed record has been published and purged.
SELECT NOT EXISTS (SELECT FROM {outbox} AS record WHERE {unless_undeleted})
