-- What no harvester can publish, no writer can insert any more. Rows that are there stay, and are parked. A table of goharvest's, which has
-- no column transaction_id, is left as it is.

DO $migration$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($name${outbox}$name$) AND attname = 'transaction_id') THEN
        ALTER TABLE {outbox}
            ADD CONSTRAINT headers_have_one_dimension CHECK (array_ndims(kafka_header_keys) = 1 AND array_ndims(kafka_header_values) = 1) NOT VALID,
            ADD CONSTRAINT id_can_be_read CHECK (id > -9223372036854775808) NOT VALID;
    END IF;
END
$migration$;
