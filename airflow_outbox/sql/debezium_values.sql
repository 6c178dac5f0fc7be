-- The parts of the trigger on an application's outbox table: what Debezium's event router, and Connect's converters, make
-- of a column. {column} is one of the inserted row; {text} is such a value as text; {value} is any of these.

-- column --
NEW.{name}

-- or_default --
coalesce({column}, {default})

-- text --
{column}::text

-- padded --
-- With the blanks at its end, which a cast would take away.
CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END

-- base64 --
translate(encode({column}, 'base64'), E'\n', '')

-- hex --
encode({column}, 'hex')

-- days --
({column} - DATE '1970-01-01')::text

-- microseconds --
round(extract(epoch FROM {column}) * 1000000)::bigint::text

-- milliseconds --
round(extract(epoch FROM {column}) * 1000)::bigint::text

-- zoned --
to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')

-- small_decimal --
-- An exact number as Java writes it: with an exponent where its first digit is behind the sixth place. {factor} is ten to
-- the power of {scale}.
CASE WHEN abs({column}) < 0.000001
    THEN CASE WHEN {column} < 0 THEN '-' ELSE '' END
        || regexp_replace(trunc(abs({column}) * {factor})::text, '^(.)(.+)$', '\1.\2')
        || 'E' || (length(trunc(abs({column}) * {factor})::text) - 1 - {scale})::text
    ELSE {column}::text
END

-- number --
-- An exact number; null where it is none.
nullif({column}, 'NaN')

-- unscaled --
-- The digits of an exact number as an integer, in as few bytes as take it, in base64.
encode(decode(regexp_replace(
    encode(int8send((nullif({column}, 'NaN') * {factor})::bigint), 'hex'), '^(00)+(?=[0-7])|^(ff)+(?=[89a-f])', ''
), 'hex'), 'base64')

-- json_string --
-- A text as Jackson writes it in JSON. Postgres writes some control characters with small letters, and does not escape
-- what needs two surrogates.
CASE WHEN {text} !~ E'[\\u000B\\u000E\\u000F\\u001A-\\u001F\\U00010000-\\U0010FFFF]' THEN to_json({text})::text
    ELSE {escape}({text})
END

-- or_null --
coalesce({value}, 'null')

-- replaced --
regexp_replace({text}, {regex}, {replacement})

-- bytes --
convert_to({value}, 'UTF8')

-- unless_empty --
CASE WHEN {text} ~ E'[^\\u0001-\\u0020]' THEN {value} END

-- unless_null --
CASE WHEN {column} IS NOT NULL THEN {value} END

-- expanded --
coalesce({expand}({text}, {keeps_nulls}), {value})

-- expanded_with_schema --
coalesce({expand_s}({text}, {keeps_nulls}, {name}), {value})

-- expanded_schema --
-- The schema alone, but for its last brace.
coalesce(left({expand_s}({text}, {keeps_nulls}, {name})::json ->> 'schema', -1), {schema})

-- expanded_payload --
coalesce({expand_s}({text}, {keeps_nulls}, {name})::json ->> 'payload', {value})

-- partition --
CASE WHEN {column} < 0 THEN 2147483647 ELSE {column} END

-- expansion --
-- JSON as Debezium sends it when it expands a payload: without nulls (unless they are kept) and empty lists, numbers as
-- Java writes them. Null for what it does not expand: anything but an object, lists of values of several types, integers
-- of more than eight bytes.
CREATE OR REPLACE FUNCTION {expand}(payload text, keeps_nulls boolean) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1
AS $function$
BEGIN
    RETURN CASE WHEN starts_with(payload, '{{') THEN {expand_value}(payload::json, keeps_nulls) END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$function$;
ALTER FUNCTION {expand}(text, boolean) OWNER TO {owner};
REVOKE ALL ON FUNCTION {expand}(text, boolean) FROM PUBLIC;
CREATE OR REPLACE FUNCTION {expand_value}(value json, keeps_nulls boolean) RETURNS text
LANGUAGE plpgsql STABLE
AS $function$
DECLARE
    kind   text := json_typeof(value);
    plain  text := value #>> '{{}}';
    amount numeric;
    digits integer;
    kinds  text[];
    names  text[];
BEGIN
    IF kind = 'object' THEN
        RETURN (
            SELECT '{{' || coalesce(string_agg(name || ':' || content, ',' ORDER BY place), '') || '}}'
            FROM (
                SELECT {json_key} AS name, min(place) AS place,
                       {expand_value}((array_agg(content ORDER BY place DESC))[1], keeps_nulls) AS content
                FROM json_each(value) WITH ORDINALITY AS members (key, content, place)
                GROUP BY key
            ) AS members
            WHERE content IS NOT NULL
        );
    ELSIF kind = 'array' THEN
        IF json_array_length(value) = 0 THEN
            RETURN NULL;
        END IF;
        SELECT array_agg(DISTINCT
            CASE
                WHEN json_typeof(element) <> 'number' THEN json_typeof(element)
                WHEN element::text !~ '^-?[0-9]+$' THEN 'double'
                WHEN element::text::numeric BETWEEN -2147483648 AND 2147483647 THEN 'int'
                ELSE 'long'
            END
        ) INTO kinds FROM json_array_elements(value) AS elements (element) WHERE json_typeof(element) <> 'null';
        IF cardinality(kinds) > 1 OR kinds IS NULL AND NOT keeps_nulls THEN
            RAISE EXCEPTION USING ERRCODE = 'data_exception', MESSAGE = 'a list of values of several types, or of nulls';
        ELSIF kinds = ARRAY['object'] THEN
            SELECT array_agg(key ORDER BY place) INTO names FROM (
                SELECT key, min(number * 1000000 + place) AS place
                FROM json_array_elements(value) WITH ORDINALITY AS elements (element, number)
                CROSS JOIN LATERAL json_each(CASE json_typeof(element) WHEN 'object' THEN element END)
                    WITH ORDINALITY AS members (key, content, place)
                WHERE {expand_value}(content, keeps_nulls) IS NOT NULL GROUP BY key
            ) AS members;
            RETURN (
                SELECT '[' || string_agg(
                    CASE WHEN json_typeof(element) = 'null' THEN 'null'
                        ELSE '{{' || coalesce((
                            SELECT string_agg({json_key} || ':' || coalesce({expand_value}(element -> key, keeps_nulls), 'null'), ',' ORDER BY place)
                            FROM unnest(names) WITH ORDINALITY AS named (key, place)
                        ), '') || '}}'
                    END, ',' ORDER BY number
                ) || ']'
                FROM json_array_elements(value) WITH ORDINALITY AS elements (element, number)
            );
        END IF;
        IF kinds = ARRAY['array'] THEN
            IF (
                SELECT json_array_length(element) FROM json_array_elements(value) AS elements (element)
                WHERE json_typeof(element) = 'array' LIMIT 1
            ) = 0 THEN
                RAISE EXCEPTION USING ERRCODE = 'data_exception', MESSAGE = 'a list of an empty list';
            END IF;
        END IF;
        RETURN (
            SELECT '[' || string_agg(coalesce({expand_value}(element, keeps_nulls), 'null'), ',' ORDER BY number) || ']'
            FROM json_array_elements(value) WITH ORDINALITY AS elements (element, number)
        );
    ELSIF kind = 'string' THEN
        RETURN {json_plain};
    ELSIF kind = 'null' THEN
        RETURN CASE WHEN keeps_nulls THEN 'null' END;
    ELSIF kind = 'boolean' THEN
        RETURN plain;
    ELSIF plain ~ '^-?[0-9]+$' THEN
        RETURN plain::bigint::text;
    END IF;
    -- A double, as Java's Double.toString writes it.
    amount := plain::float8::text::numeric;
    IF amount = 0 THEN
        RETURN CASE WHEN starts_with(plain, '-') THEN '-0.0' ELSE '0.0' END;
    END IF;
    digits := CASE WHEN abs(amount) >= 10000000 THEN length(trunc(abs(amount))::text) - 1
                  WHEN abs(amount) < 0.001 THEN 1 - length(abs(amount)::text) + length(ltrim(abs(amount)::text, '0.'))
                  ELSE 0 END;
    amount := trim_scale(amount * ('1e' || -digits)::numeric);
    plain := amount::text || CASE WHEN scale(amount) = 0 THEN '.0' ELSE '' END;
    RETURN plain || CASE WHEN digits = 0 THEN '' ELSE 'E' || digits END;
END
$function$;
ALTER FUNCTION {expand_value}(json, boolean) OWNER TO {owner};
REVOKE ALL ON FUNCTION {expand_value}(json, boolean) FROM PUBLIC;
CREATE OR REPLACE FUNCTION {expand_s}(payload text, keeps_nulls boolean, name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1
AS $function$
BEGIN
    RETURN CASE WHEN starts_with(payload, '{{') THEN
        '{{"schema":' || {expand_schema}(payload::json, keeps_nulls, name) || ',"payload":' || {expand_value}(payload::json, keeps_nulls) || '}}'
    END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$function$;
ALTER FUNCTION {expand_s}(text, boolean, text) OWNER TO {owner};
REVOKE ALL ON FUNCTION {expand_s}(text, boolean, text) FROM PUBLIC;
-- Connect's schema of a value, as Debezium infers it. `name` is that of the column and the members above it.
CREATE OR REPLACE FUNCTION {expand_schema}(value json, keeps_nulls boolean, name text) RETURNS text
LANGUAGE plpgsql STABLE
AS $function$
DECLARE
    kind   text := json_typeof(value);
    sample json;
BEGIN
    IF kind = 'string' OR kind = 'boolean' THEN
        RETURN '{{"type":"' || kind || '","optional":true}}';
    ELSIF kind = 'null' THEN
        RETURN CASE WHEN keeps_nulls THEN '{{"type":"bytes","optional":true}}' END;
    ELSIF kind = 'number' THEN
        RETURN '{{"type":"' || CASE
            WHEN value::text !~ '^-?[0-9]+$' THEN 'double'
            WHEN value::text::numeric BETWEEN -2147483648 AND 2147483647 THEN 'int32'
            ELSE 'int64'
        END || '","optional":true}}';
    ELSIF kind = 'object' THEN
        sample := json_build_array(value);
    ELSE
        IF json_array_length(value) = 0 THEN
            RETURN NULL;
        END IF;
        SELECT element INTO sample FROM json_array_elements(value) AS elements (element)
        WHERE json_typeof(element) <> 'null' LIMIT 1;
        IF json_typeof(sample) IS DISTINCT FROM 'object' THEN
            RETURN '{{"type":"array","items":' || {expand_schema}(coalesce(sample, 'null'), keeps_nulls, NULL) || ',"optional":true}}';
        END IF;
        sample := value;
    END IF;
    -- An object, or the objects of a list with all their members.
    RETURN CASE kind WHEN 'array' THEN '{{"type":"array","items":' ELSE '' END || (
        SELECT '{{"type":"struct","fields":[' || coalesce(string_agg(left(schema, -1) || ',"field":' || {json_key} || '}}', ',' ORDER BY place), '')
               || '],"optional":true' || coalesce(',"name":' || {json_name}, '') || '}}'
        FROM (
            SELECT key, min(place) AS place, (array_agg(schema ORDER BY place))[1] AS schema
            FROM (
                SELECT key, number * 1000000 + position AS place,
                       {expand_schema}(content, keeps_nulls, concat_ws('.', nullif(name, ''), key)) AS schema
                FROM json_array_elements(sample) WITH ORDINALITY AS elements (element, number)
                CROSS JOIN LATERAL json_each(CASE json_typeof(element) WHEN 'object' THEN element END)
                    WITH ORDINALITY AS members (key, content, position)
            ) AS members
            WHERE schema IS NOT NULL GROUP BY key
        ) AS members
    ) || CASE kind WHEN 'array' THEN ',"optional":true}}' ELSE '' END;
END
$function$;
ALTER FUNCTION {expand_schema}(json, boolean, text) OWNER TO {owner};
REVOKE ALL ON FUNCTION {expand_schema}(json, boolean, text) FROM PUBLIC

-- escaping --
-- Such a text with control characters, or with letters that need two surrogates. It is a function, because what stands in
-- the trigger itself is prepared for each row.
CREATE OR REPLACE FUNCTION {escape}(plain text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    RETURN (
        SELECT '"' || string_agg(
            CASE WHEN letter ~ E'[\\U00010000-\\U0010FFFF]'
                THEN E'\\u' || upper(to_hex(55232 + (ascii(letter) >> 10))) || E'\\u' || upper(to_hex(56320 + (ascii(letter) & 1023)))
                WHEN letter ~ E'[\\u000B\\u000E\\u000F\\u001A-\\u001F]'
                THEN E'\\u00' || upper(lpad(to_hex(ascii(letter)), 2, '0'))
                ELSE substr(to_json(letter)::text, 2, length(to_json(letter)::text) - 2)
            END, '' ORDER BY place
        ) || '"'
        FROM regexp_split_to_table(plain, '') WITH ORDINALITY AS letters (letter, place)
    );
END
$function$;
ALTER FUNCTION {escape}(text) OWNER TO {owner};
REVOKE ALL ON FUNCTION {escape}(text) FROM PUBLIC
