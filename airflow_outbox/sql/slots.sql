-- Slots: what keeps the order of its records, a topic and a key, belongs to one of 64 slots, and a shard harvests some of
-- them. The slot of a record never changes while the table exists. An outbox with one shard has no use for slots: it
-- has none of these indexes, and none of its statements reckons them.

-- slot --
-- Part of statements and indexes: the slot of a row's topic and key, from 0 to 63: six bits of an MD5 sum over two of
-- them. Each has 32 characters, so no other topic and key make the same text; a missing key adds none. MD5 stays the
-- same in all releases of Postgres, unlike its own hash functions. The key is text or bytes, in the database's encoding.
-- A row's name stands before the columns where others have such names.
(pg_catalog.get_byte(pg_catalog.decode(pg_catalog.md5(
    pg_catalog.md5({of}kafka_topic::pg_catalog.text) OPERATOR(pg_catalog.||) coalesce(pg_catalog.md5({of}kafka_key::{md5_type}), ''::pg_catalog.text)
), 'hex'::pg_catalog.text), 0) OPERATOR(pg_catalog.&) 63)

-- shard --
-- Part of statements for people: the shard that harvests a row's topic and key now. Null where there is only one, and
-- then no slot is reckoned.
(SELECT CASE WHEN state.shards > 1 THEN mod({slot}, state.shards) END FROM {state} AS state)

-- index --
-- One of the indexes: for windows (`column` is transaction_id), or for paging (id). It blocks no writer.
CREATE INDEX CONCURRENTLY {index} ON {outbox} ({slot}, {column})

-- drop_index --
-- What is left of an index whose making was interrupted.
DROP INDEX CONCURRENTLY {index}

-- indexes --
-- The names of the outbox's indexes by an expression and a column, and whether each is complete.
SELECT relname::text, indisvalid
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass(%(outbox)s) AND indnatts = 2 AND indkey[0] = 0 AND indpred IS NULL

-- own --
-- Part of statements about parked records, where the outbox has several shards: those of the shard's slots.
AND {slot} = ANY(%(slots)s::integer[])
