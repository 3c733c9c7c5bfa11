-- The document that a verb is given. One that is too long is refused before it is read.
CREATE OR REPLACE FUNCTION too_long(batch text, code text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE 'one call takes at most 33,554,432 bytes, not %', octet_length(batch) USING ERRCODE = code;
END $$;

CREATE OR REPLACE FUNCTION document(batch text, code text DEFAULT 'program_limit_exceeded') RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(batch) > 33554432 THEN too_long(batch, code) ELSE batch::jsonb END
$$;

-- The level of the program that gives a document.
CREATE OR REPLACE FUNCTION told_level(doc jsonb) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((doc->>'level')::integer, 1) $$;
