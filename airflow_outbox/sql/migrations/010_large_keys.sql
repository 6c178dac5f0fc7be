-- A key of any size can be parked. A row of an index has at most some 2,700 bytes, so that the parked table's index on
-- lanes gets keys that are short enough. Adding that column rewrites the table.

DO $migration$
DECLARE
    parked CONSTANT regclass := to_regclass({parked_text});
    kind   CONSTANT TEXT := (SELECT CASE atttypid WHEN 'bytea'::regtype THEN 'bytea' ELSE 'text' END
                             FROM pg_attribute WHERE attrelid = parked AND attname = 'kafka_key');
    lanes  RECORD;
BEGIN
    FOR lanes IN
        SELECT indexrelid::regclass AS name
        FROM pg_index
        WHERE indrelid = parked AND indexprs IS NULL AND ARRAY['kafka_topic', 'kafka_key', 'number'] = ARRAY(
            SELECT attname::text FROM unnest(indkey::int2[]) WITH ORDINALITY AS part (attnum, place)
            JOIN pg_attribute USING (attnum) WHERE attrelid = parked ORDER BY place
        )
    LOOP
        EXECUTE format('DROP INDEX %s', lanes.name);
    END LOOP;
    EXECUTE format(
        'ALTER TABLE %s ADD COLUMN lane_key %s GENERATED ALWAYS AS (
             CASE WHEN octet_length(kafka_key) <= 100 THEN kafka_key ELSE substr(kafka_key, 1, 100) || md5(kafka_key)::%2$s END
         ) STORED', parked, kind
    );
END
$migration$;

CREATE INDEX ON {parked} (kafka_topic, lane_key, number) WHERE discarded_at IS NULL;
