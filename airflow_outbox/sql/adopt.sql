-- Another history becomes the outbox's own, or a copy becomes an outbox of its own.

-- adopt --
-- Accepts the present history: a new incarnation, which the ledger has not seen either. The transaction has taken over
-- and locked all shards. The other statements of an adoption follow in it.
UPDATE {state}
SET incarnation = greatest(incarnation, %(last_incarnation)s) + 1, halted = NULL, (system_identifier, timeline, table_oid, database_oid) = ({present})
RETURNING incarnation

-- adopt_shard --
-- Records from where a shard goes on: from the given witness. Ids in the upper half of all ids were chosen by a writer: the sequence
-- goes on above the highest of the others. No row when the fence names another view.
WITH adopted AS (
    UPDATE {shard}
    SET highest_id = greatest(%(highest_id)s, (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904)),
        begun_view = %(view)s, watermark = NULL, covered_batch = %(batch)s, topics = jsonb_build_object(), uncovered = jsonb_build_object()
    WHERE shard = %(shard)s AND view = %(view)s
    RETURNING shard, highest_id, primary_cluster
)
UPDATE {ledger} AS ledger
SET ledger_topic_id = %(topic_id)s, witnessed_batch = %(batch)s, ledger_offset = %(offset)s
FROM adopted
WHERE ledger.shard = adopted.shard AND cluster = primary_cluster
RETURNING highest_id

-- lock_shards --
-- Before the outbox's row is changed: no leader's statement comes between the original and its copies.
SELECT FROM {shard} ORDER BY shard FOR UPDATE

-- shards --
SELECT shard FROM {shard} ORDER BY shard

-- copy_to_shards --
-- After the outbox's row was changed, in the same transaction: the shards' copies of it.
UPDATE {shard} AS fence SET outbox_id = state.outbox_id, incarnation = state.incarnation, secret = state.secret FROM {state} AS state

-- forget_lacks --
-- What clusters lack are records of other incarnations, whose tickets are refused. Their transaction ids name others now.
UPDATE {cluster} SET lacks = NULL WHERE lacks IS NOT NULL

-- running_harvester --
-- The member that a shard's fence row names, if one of its sessions is still there, or if it was heard from in the last
-- seconds; no row otherwise. A heartbeat from the future came before a clock was set back.
SELECT member, extract(epoch FROM clock_timestamp() - heartbeat_at)::double precision
FROM {shard}
WHERE (
    EXISTS (SELECT FROM jsonb_to_recordset(backends) AS known (pid integer, started timestamptz)
            JOIN pg_stat_activity AS session ON session.pid = known.pid AND session.backend_start = known.started)
    OR heartbeat_at BETWEEN clock_timestamp() - make_interval(secs => %(silence)s) AND clock_timestamp())
FOR UPDATE

-- copied --
-- A copy's producers and ledger topic, which are its original's, and how many of its records wait or are parked.
SELECT transactional_ids, ledger_topic_id, (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM {parked} WHERE discarded_at IS NULL)
FROM {ledger} JOIN {shard} AS fence USING (shard)
WHERE shard = %(shard)s AND cluster = primary_cluster

-- become_new_outbox --
-- Makes the outbox of a copied database a new one: with its own id, and no knowledge of a history. The transaction has
-- locked all shards.
UPDATE {state}
SET outbox_id = gen_random_uuid(), secret = gen_random_uuid(), incarnation = incarnation + 1, halted = NULL, system_identifier = NULL, timeline = NULL,
    table_oid = NULL, database_oid = NULL
RETURNING outbox_id, incarnation

-- forget_shard --
-- A shard of the new outbox knows of no ledger and no published records. It follows no view, so that no statement of an
-- earlier leader does anything.
WITH forgotten AS (
    UPDATE {shard}
    SET view = NULL, slots_view = NULL, begun_view = NULL, backends = jsonb_build_array(), member = NULL, took_over_at = NULL, heartbeat_at = NULL, in_flight = 0,
        rate = 0, published = 0, published_at = NULL, last_error = NULL, last_error_at = NULL, handover_asked_at = NULL, delivery = NULL,
        highest_id = (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904), beats = 0, watermark = NULL, covered_batch = 0,
        topics = jsonb_build_object(), uncovered = jsonb_build_object()
    WHERE shard = %(shard)s
    RETURNING shard, highest_id
)
UPDATE {ledger} AS ledger
SET transactional_ids = ARRAY[]::text[], ledger_topic_id = NULL, witnessed_batch = 0, ledger_offset = 0
FROM forgotten
WHERE ledger.shard = forgotten.shard
RETURNING highest_id

-- forget_history --
-- The history is the original's.
DELETE FROM {history}

-- adopt_transactions --
-- Gives records whose transaction has not begun yet in this database the id of this transaction.
UPDATE {outbox} SET transaction_id = pg_current_xact_id() WHERE transaction_id >= pg_snapshot_xmax(pg_current_snapshot())

-- adopt_sequence --
-- Lets the sequence of the ids go on above all that was published.
SELECT setval(sequence, greatest(%(highest_id)s, coalesce(pg_sequence_last_value(sequence), 0), 1))
FROM CAST(pg_get_serial_sequence(%(outbox)s, 'id') AS regclass) AS sequence
WHERE sequence IS NOT NULL

-- note_adoption --
-- Records what was accepted, when, by whom and why.
INSERT INTO {adopted} (incarnation, differences, reason) VALUES (%(incarnation)s, %(differences)s, %(reason)s)
