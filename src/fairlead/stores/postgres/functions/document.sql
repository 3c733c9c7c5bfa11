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

-- Refuse a program that the schema serves no longer.
CREATE OR REPLACE FUNCTION refuse_program(level integer) RETURNS integer LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE 'the schema is at step %, which serves programs of level %, not of level %',
        (SELECT max(number) FROM migration WHERE number <= 9999), least_level(), level
        USING ERRCODE = 'JQ003';
END $$;

-- The level of the program that gives a document; who tells none has the first.
CREATE OR REPLACE FUNCTION own_level(doc jsonb) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((doc->>'level')::integer, 1) $$;

-- The same, if the schema serves that program. Every verb asks for it before it does anything, but those by which a
-- program ends what it has claimed: extend, settle and held touch only jobs of its level, under its fence.
-- least_level says which programs are served, and is replaced by the step that changes that (sql/apply.sql). It is a number
-- by the time that a plan is made, so it costs nothing to ask.
CREATE OR REPLACE FUNCTION told_level(doc jsonb) RETURNS integer LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN own_level(doc) >= least_level() THEN own_level(doc)
                ELSE refuse_program(own_level(doc)) END
$$;
