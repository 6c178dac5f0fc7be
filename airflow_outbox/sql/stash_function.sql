-- One call from any language: a function beside the outbox that stashes a record. It is made on request.
-- {outbox}, {state}: the tables; {stash}: the function; {key_type}, {value_type}, {header_type}: TEXT or BYTEA, as the
-- outbox's columns; {header}: a header's value as that type; {owner}: the owner of outbox and function.

-- make --
-- Stashes a record in the caller's transaction, with the caller's rights, and returns the ticket. `headers` is a JSON
-- object of texts, or a list of pairs of them; their order is kept, and a name may occur twice. A key or value that is
-- too long for its column is Postgres' own error.
CREATE OR REPLACE FUNCTION {stash}(topic text, key {key_type}, value {value_type}, headers json DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    kind           text := coalesce(json_typeof(headers), 'null');
    header_names   text[] := ARRAY[]::text[];
    header_values  {header_type}[] := ARRAY[]::{header_type}[];
    are_texts      boolean := kind IN ('object', 'array', 'null');
    problem        text;
    ticket         text;
BEGIN
    IF kind IN ('object', 'array') THEN
        SELECT coalesce(array_agg(pair ->> 0 ORDER BY place), header_names),
               coalesce(array_agg({header} ORDER BY place), header_values),
               coalesce(bool_and(
                   CASE WHEN json_typeof(pair) = 'array' AND json_typeof(pair -> 0) = 'string' AND json_typeof(pair -> 1) = 'string'
                       THEN json_array_length(pair) = 2 AND pair ->> 0 <> ''
                       ELSE false
                   END
               ), true)
        INTO header_names, header_values, are_texts
        FROM (
            SELECT json_build_array(one.name, one.content) AS pair, one.place
            FROM json_each(CASE kind WHEN 'object' THEN headers END) WITH ORDINALITY AS one (name, content, place)
            UNION ALL
            SELECT one.content, one.place
            FROM json_array_elements(CASE kind WHEN 'array' THEN headers END) WITH ORDINALITY AS one (content, place)
        ) AS given;
    END IF;
    problem := CASE
        WHEN topic IS NULL OR topic !~ '^[A-Za-z0-9._-]+$' OR length(topic) > 249 OR topic IN ('.', '..') OR starts_with(topic, '__')
            THEN 'topic: ' || coalesce(quote_literal(topic), 'null')
                 || ' is not a legal name: 1 to 249 letters, digits, ''.'', ''_'' and ''-'', and no ''__'' at the beginning'
        WHEN key IS NULL THEN 'key: null, but a record needs one: it gives records their order'
        WHEN NOT are_texts THEN 'headers: give a JSON object of texts, or a list of pairs of texts; no name may be empty'
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem, HINT = 'Nothing was written. Correct the argument.';
    END IF;
    INSERT INTO {outbox} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
    VALUES (now(), topic, key, value, header_names, header_values);
    SELECT outbox_id || '/' || incarnation || '/' || pg_current_xact_id() INTO ticket FROM {state};
    IF ticket IS NULL THEN
        RAISE EXCEPTION USING MESSAGE = 'the outbox''s own row is missing', HINT = 'Roll back and run `airflow-outbox init`.';
    END IF;
    RETURN ticket;
END
$function$;
ALTER FUNCTION {stash}(text, {key_type}, {value_type}, json) OWNER TO {owner};
REVOKE ALL ON FUNCTION {stash}(text, {key_type}, {value_type}, json) FROM PUBLIC

-- place --
-- The outbox's schema, its owner as Postgres quotes it, the owner of the function, if it is there,
-- and whether the connected role may act for the outbox's owner.
SELECT nspname, relowner::regrole::text, (
    SELECT proowner::regrole::text FROM pg_proc
    WHERE pronamespace = relnamespace AND proname = %(function)s::text ORDER BY proowner = relowner LIMIT 1
), pg_has_role(relowner, 'USAGE')
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%(outbox)s)
