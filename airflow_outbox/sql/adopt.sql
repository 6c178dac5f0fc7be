-- Another history becomes the outbox's own, or a copy becomes an outbox of its own.

-- adopt --
-- Accepts the present history, if the fence names this view: a new incarnation, which the ledger has not seen either,
-- and the given witness. Ids in the upper half of all ids were chosen by a writer: the sequence goes on above the
-- highest of the others. The other statements of an adoption follow in the same transaction.
UPDATE {leader} AS fence
SET incarnation = greatest(incarnation, %(last_incarnation)s) + 1, halted = NULL, ledger_topic_id = %(topic_id)s, witnessed_batch = %(batch)s, ledger_offset = %(offset)s,
    highest_id = greatest(%(highest_id)s, (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904)),
    system_identifier = (pg_control_system()).system_identifier,
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
    table_oid = to_regclass(%(outbox)s)::oid, database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
    begun_view = %(view)s, watermark = NULL, covered_batch = %(batch)s, topics = jsonb_build_object(), uncovered = jsonb_build_object()
WHERE shard = %(shard)s AND view = %(view)s
RETURNING incarnation, highest_id

-- running_harvester --
-- The member that the fence row names, if one of its sessions is still there, or if it was heard of in the last
-- seconds; no row otherwise. A heartbeat from the future came before a clock was set back.
SELECT member, extract(epoch FROM clock_timestamp() - heartbeat_at)::double precision
FROM {leader}
WHERE shard = %(shard)s AND (
    EXISTS (SELECT FROM jsonb_to_recordset(backends) AS known (pid integer, started timestamptz)
            JOIN pg_stat_activity AS session ON session.pid = known.pid AND session.backend_start = known.started)
    OR heartbeat_at BETWEEN clock_timestamp() - make_interval(secs => %(silence)s) AND clock_timestamp())
FOR UPDATE

-- copied --
-- A copy's producers and ledger topic, which are its original's, and how many of its records wait or are parked.
SELECT transactional_ids, ledger_topic_id, (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM {parked} WHERE discarded_at IS NULL)
FROM {leader}
WHERE shard = %(shard)s

-- become_new_outbox --
-- Makes the outbox of a copied database a new one: with its own id, and no knowledge of a ledger, a history or
-- published records. It follows no view, so that no statement of an earlier leader does anything.
UPDATE {leader}
SET outbox_id = gen_random_uuid(), secret = gen_random_uuid(), incarnation = incarnation + 1, view = NULL, begun_view = NULL, backends = jsonb_build_array(),
    member = NULL, took_over_at = NULL, heartbeat_at = NULL, in_flight = 0, rate = 0, published = 0, published_at = NULL, last_error = NULL, last_error_at = NULL,
    handover_asked_at = NULL, delivery = NULL, transactional_ids = ARRAY[]::text[], system_identifier = NULL, timeline = NULL, table_oid = NULL,
    database_oid = NULL, ledger_topic_id = NULL, witnessed_batch = 0, ledger_offset = 0,
    highest_id = (SELECT coalesce(max(id), 0) FROM {outbox} WHERE id < 4611686018427387904), beats = 0, halted = NULL, watermark = NULL, covered_batch = 0,
    topics = jsonb_build_object(), uncovered = jsonb_build_object()
WHERE shard = %(shard)s
RETURNING outbox_id, incarnation, highest_id

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
