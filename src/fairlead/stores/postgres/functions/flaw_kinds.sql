-- What is damaged, by one definition for those who look and those who mend. A damaged row harms
-- nobody but itself: the verbs of the line step over it, or write what they can of it elsewhere.

-- The kinds of damage, in the order in which they are mended.
CREATE OR REPLACE FUNCTION flaw_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$ SELECT line_kinds() || ended_kinds() || entry_kinds() || other_kinds() $$;

-- Whose damage of one kind there is, from a key on, in the order of the keys and up to so many.
CREATE OR REPLACE FUNCTION flaws_of(kind text, start text, at bigint, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF kind = ANY (line_kinds()) THEN
        RETURN QUERY SELECT f.whose FROM flaws_line(kind, start, at, most) AS f;
    ELSIF kind = ANY (ended_kinds()) THEN
        RETURN QUERY SELECT f.whose FROM flaws_ended(kind, start, at, most) AS f;
    ELSIF kind = ANY (entry_kinds()) THEN
        RETURN QUERY SELECT f.whose FROM flaws_entries(kind, start, most) AS f;
    ELSE
        RETURN QUERY SELECT f.whose FROM flaws_other(kind, start, at, most) AS f;
    END IF;
END $$;

-- Put one of them right, or move it out, if it is still so. A number that follows from others is written
-- anew, and a job that cannot stay where it is becomes a dead letter. What is removed: the earlier of two ends
-- of one job, a second line about one run, and what cannot be read of a history, an entry, a worker or a pause.
CREATE OR REPLACE FUNCTION mend(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF what = ANY (line_kinds()) THEN
        PERFORM mend_line(what, whose, at);
    ELSIF what = ANY (ended_kinds()) THEN
        PERFORM mend_ended(what, whose, at);
    ELSIF what = ANY (entry_kinds()) THEN
        PERFORM mend_entries(what, whose);
    ELSE
        PERFORM mend_other(what, whose, at);
    END IF;
END $$;

-- Mend one, and return why it could not be mended; null if it was. It waits little for rows that others
-- have: who mends the next ones cannot wait for each.
CREATE OR REPLACE FUNCTION try_mend(what text, whose text, at bigint) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM mend(what, whose, at);
    RETURN NULL;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 'somebody has it locked; when that transaction has ended, repair again';
    WHEN OTHERS THEN
        RETURN SQLERRM;
END $$;
