-- The rights of each role. {role}: the role; {schema}: the schema of the tables; {sequence}: the sequence of the
-- outbox's id;
-- {staging}: the schema of jobs' staging tables; {owner}: the outbox's owner.

-- stash --
-- To stash records: insert the allowed columns, draw ids, and read the parts of a ticket and how far everything is
-- published. Nothing else.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) ON {outbox} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role};
GRANT SELECT (outbox_id, incarnation) ON {state} TO {role};
GRANT SELECT (shard, outbox_id, incarnation, delivery, watermark, doubt, secret, layout, is_one_of_many, clusters) ON {published} TO {role};

-- stash_ticket --
-- And to count a transaction's remaining or parked records, where the outbox has the column. Without it no ticket is
-- answered.
GRANT SELECT (transaction_id) ON {outbox} TO {role};
GRANT SELECT (transaction_id, incarnation, reason, discarded_at) ON {parked} TO {role};

-- stash_partition --
-- And to choose a record's partition, where the outbox has the column.
GRANT INSERT (kafka_partition) ON {outbox} TO {role};

-- stash_function --
-- And to call the function that stashes a record, where there is one.
GRANT EXECUTE ON FUNCTION {stash}(text, {key_type}, {value_type}, json) TO {role};

-- harvest --
-- To harvest: mark, purge, keep the fence row and the ledger's, record a history and halt, and see how far the ids are.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, DELETE, UPDATE (leader_id) ON {outbox} TO {role};
GRANT SELECT ON SEQUENCE {sequence} TO {role};
GRANT SELECT ON {state}, {shard}, {ledger}, {cluster} TO {role};
GRANT UPDATE (halted, system_identifier, timeline, table_oid, database_oid, layout, shards, shards_wanted, shards_wanted_at, membership, promotions, attach_wanted, attach_how, attach_closing) ON {state} TO {role};
GRANT UPDATE (view, slots_view, slots, layout, begun_view, backends, member, took_over_at, heartbeat_at, lagging_after, stalled_after, silence, beats, delivery, last_error, last_error_at, primary_cluster, begun_primary) ON {shard} TO {role};
GRANT UPDATE (published, published_at, in_flight, rate, highest_id, watermark, covered_batch, topics, uncovered) ON {shard} TO {role};
GRANT UPDATE (ledger_topic_id, witnessed_batch, ledger_offset, transactional_ids, skipped) ON {ledger} TO {role};
GRANT UPDATE (part, since, reason, lacks) ON {cluster} TO {role};
GRANT SELECT, INSERT, DELETE ON {owed}, {owed_rows} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {parked}, {undeleted}, {trouble}, {member}, {positions} TO {role};
GRANT SELECT, INSERT ON {history} TO {role};
GRANT UPDATE (noted_at, state, backlog, backlog_is_exact, oldest_age, rate, latency_p50, latency_p99) ON {history} TO {role};
GRANT SELECT, INSERT (action, on_behalf_of, matched, reason, records) ON {trail} TO {role};
GRANT SELECT ON {published} TO {role};

-- look --
-- To look: read everything, change nothing.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {outbox}, {state}, {shard}, {ledger}, {cluster}, {owed}, {owed_rows}, {commits}, {adopted}, {parked}, {undeleted}, {published}, {trouble}, {member}, {positions}, {history}, {trail} TO {role};

-- harvest_archive --
-- And to move published records into the archive, and to delete records from its default partition.
GRANT SELECT, INSERT ON {archive} TO {role};
GRANT SELECT, DELETE ON {default} TO {role};

-- look_archive --
-- And to read the archive.
GRANT SELECT ON {archive} TO {role};

-- replay --
-- And to stash archived records again, once under an id, beside what `stash` allows.
GRANT SELECT, INSERT (app_id, version, records, incarnation) ON {commits} TO {role};

-- operate --
-- To operate, beside what `look` allows: pause and hand over, ask for parked records to be retried or discarded, and
-- enter that in the trail.
GRANT UPDATE (paused, paused_at, attach_wanted, attach_how) ON {state} TO {role};
GRANT UPDATE (handover_asked_at) ON {shard} TO {role};
GRANT UPDATE (requested, request_reason) ON {parked} TO {role};
GRANT INSERT (action, on_behalf_of, matched, reason, records) ON {trail} TO {role};

-- job_schema --
-- The schema for jobs' staging tables, where `init` could not make it.
CREATE SCHEMA {staging} AUTHORIZATION {owner};

-- job --
-- For a job that commits once under an id, beside what `stash` allows: its staging tables, in their own schema, and the
-- list of commits.
GRANT USAGE, CREATE ON SCHEMA {staging} TO {role};
GRANT SELECT, INSERT (app_id, version, records, incarnation) ON {commits} TO {role};
