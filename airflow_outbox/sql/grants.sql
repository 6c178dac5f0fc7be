-- What each role may do. {role}: the role; {schema}: the schema of the tables; {sequence}: the sequence of the outbox's id;
-- {staging}: the schema of jobs' staging tables; {owner}: who owns the outbox.

-- stash --
-- To stash records: insert the allowed columns, draw ids, read what a ticket is made of, and how far all is out. Nothing else.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) ON {outbox} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role};
GRANT SELECT (shard, outbox_id, incarnation) ON {leader} TO {role};
GRANT SELECT (shard, outbox_id, incarnation, delivery, watermark, doubt, secret) ON {published} TO {role};

-- stash_ticket --
-- And to count what is left of a transaction, or parked, where the outbox has the column: without it no ticket is answered.
GRANT SELECT (transaction_id) ON {outbox} TO {role};
GRANT SELECT (transaction_id, incarnation, reason, discarded_at) ON {parked} TO {role};

-- stash_partition --
-- And to choose a record's partition, where the outbox has the column.
GRANT INSERT (kafka_partition) ON {outbox} TO {role};

-- harvest --
-- To harvest: mark, purge, keep the fence row, and see that the ids go on.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, DELETE, UPDATE (leader_id) ON {outbox} TO {role};
GRANT SELECT ON SEQUENCE {sequence} TO {role};
GRANT SELECT, UPDATE ON {leader} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {parked} TO {role};
GRANT SELECT ON {published} TO {role};

-- look --
-- To look: read everything, change nothing.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {outbox}, {leader}, {commits}, {adopted}, {parked}, {published} TO {role};

-- harvest_archive --
-- And to move what is published into the archive, and to delete there what came into no day's partition.
GRANT SELECT, INSERT ON {archive} TO {role};
GRANT SELECT, DELETE ON {default} TO {role};

-- look_archive --
-- And to read the archive.
GRANT SELECT ON {archive} TO {role};

-- replay --
-- And to stash again what is in the archive, once under an id, beside what `stash` allows.
GRANT SELECT, INSERT (app_id, version, records, incarnation) ON {commits} TO {role};

-- operate --
-- To operate, beside what `look` allows: pause and hand over, and ask for parked records to be retried or discarded.
GRANT UPDATE (paused, handover_asked_at) ON {leader} TO {role};
GRANT UPDATE (requested, request_reason) ON {parked} TO {role};

-- job_schema --
-- The schema for jobs' staging tables, where `init` could not make it.
CREATE SCHEMA {staging} AUTHORIZATION {owner};

-- job --
-- For a job that commits once under an id, beside what `stash` allows: its staging tables, in a schema of theirs, and the list of commits.
GRANT USAGE, CREATE ON SCHEMA {staging} TO {role};
GRANT SELECT, INSERT (app_id, version, records, incarnation) ON {commits} TO {role};
